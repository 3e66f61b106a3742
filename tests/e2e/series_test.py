# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""The verdict of a soak: steady processes pass, and each kind of leak is found."""

import dataclasses
import os
import random
import threading

import pytest
import series
from series import BOUNDS, Recorder, Usage

STEADY = Usage(0.0, 40.0, 35.0, 6.0, 30, 20, 5)
SAMPLES, WARM_UP = 100, 20  # one a second


def record(usage_at, processes=lambda second: {"node-0": 11}) -> Recorder:
    """usage_at(second, pid) is what the process takes then."""
    now = [0]
    made = Recorder(lambda pid, at: dataclasses.replace(usage_at(now[0], pid), at=at), lambda: float(now[0]))
    for now[0] in range(SAMPLES):
        made.sample(processes(now[0]))
    return made


def found(made: Recorder) -> list[str]:
    return series.findings(made.verdicts(WARM_UP), ["node-0"])


def with_more(**more: float) -> Usage:
    return dataclasses.replace(STEADY, **{name: getattr(STEADY, name) + value for name, value in more.items()})


def test_a_process_that_comes_and_goes_around_the_same_is_flat():
    draw = random.Random(7)
    made = record(lambda second, pid: with_more(rss=draw.gauss(0.0, 1.0), pss=draw.gauss(0.0, 1.0),
                                                descriptors=3 if draw.random() < 0.2 else 0))
    assert found(made) == []


def test_what_grows_during_the_warm_up_only_is_flat():
    assert found(record(lambda second, pid: with_more(rss=min(second, WARM_UP), threads=min(second, WARM_UP)))) == []


@pytest.mark.parametrize("quantity", BOUNDS)
def test_a_leak_of_each_kind_is_found_and_named(quantity):
    whole = quantity in ("descriptors", "threads", "pooled")
    # A little more than the bound from quarter to quarter: the medians are three quarters of the samples apart.
    rate = (BOUNDS[quantity] + 1.1) / (0.75 * (SAMPLES - WARM_UP))
    made = record(lambda second, pid: with_more(**{quantity: (second * rate) // 1 if whole else second * rate}))
    [finding] = found(made)
    assert finding.startswith(f"node-0 (11): {quantity} grew from ")
    assert "NOT FLAT" in series.table(made.verdicts(WARM_UP))


def test_a_leak_that_begins_anew_with_each_process_is_not_one_series():
    made = record(lambda second, pid: with_more(rss=second),
                  lambda second: {"node-0": 11, "node-1": 100 + second // 10})
    assert made.restarted() == {"node-1": 10}
    assert {verdict.process for verdict in made.verdicts(WARM_UP)} == {"node-0 (11)"}


def test_a_process_that_could_not_be_judged_is_an_error():
    made = record(lambda second, pid: STEADY, lambda second: {"node-0": second // 5, "node-1": 11})
    assert found(made) == ["node-0: no process was there for 8 samples after the warm-up"]


def test_a_real_leak_of_this_process_is_found():
    kept, go, now = [], threading.Event(), [0.0]
    made = Recorder(clock=lambda: now[0])
    try:
        for _ in range(16):
            now[0] += 1.0
            kept.append((os.open("/dev/null", os.O_RDONLY), threading.Thread(target=go.wait), b"x" * (2 * series.MIB)))
            kept[-1][1].start()
            made.sample({"node-0": os.getpid()})
    finally:
        go.set()
        for descriptor, thread, _ in kept:
            thread.join()
            os.close(descriptor)
    grown = {finding.split()[2] for finding in series.findings(made.verdicts(0.0), ["node-0"])}
    assert grown == {"rss", "pss", "descriptors", "threads"}
