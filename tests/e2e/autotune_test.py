# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""Plans from what the daemon has measured of its own kernels."""

import json
import os

import dmuon_client as dmuon
import pytest
from trainers import Bag, bits, random_tensors, whole_params

SHAPES = {"square": (48, 48), "wide": (16, 64), "tall": (96, 24), "b": (5,)}
STEPS = 3


def stepped(rank, world_size, address, job, keywords, environment=None):
    """Parameters after some steps, or the refusal."""
    os.environ.update(environment or {})
    bag = Bag(random_tensors(SHAPES, 0), "rows")
    try:
        with dmuon.Muon(bag, job=job, address=address, verbose=False, **keywords) as opt:
            for step in range(1, STEPS + 1):
                bag.feed(random_tensors(SHAPES, step))
                opt.step()
            return whole_params(bag)
    except dmuon.DmuonError as error:
        return str(error)
    finally:
        os.environ["DMUON_AUTOTUNE"] = "off"


def planned(daemon, job):
    """{tensor: (form, precision)} of the matrices, and why the plan was made."""
    answer = json.loads(daemon.ctl("--json", "plan", job).stdout)
    names = [tensor["name"] for tensor in answer["job"]["tensors"]]
    methods = {names[unit["tensor"]]: (unit["methods"][0]["form"], unit["methods"][0]["precision"])
               for unit in answer["plan"]["units"] if unit["methods"]}
    return methods, answer["plan"]["reason"]


def measured(daemon):
    """{(rows, cols, form, precision): seconds}"""
    times = json.loads(daemon.ctl("--json", "kernels").stdout)["times"]
    return {(int(t["rows"]), int(t["cols"]), t["method"]["form"], t["method"]["precision"]): t["seconds"]
            for t in times if "method" in t}


def test_what_is_planned_is_the_fastest_measured_and_is_what_runs(daemon, job):
    bag = Bag(random_tensors(SHAPES, 0), "plain")
    with dmuon.Muon(bag, job=job, address=daemon.address, verbose=False, autotune="on", precision="auto") as opt:
        bag.feed(random_tensors(SHAPES, 1))
        opt.step()
        methods, reason = planned(daemon, job)
        times = measured(daemon)
        metrics = daemon.metrics()
    assert "prices as measured" in reason
    assert set(methods) == set(SHAPES) - {"b"}
    runs: dict[tuple[str, str], int] = {}
    for name, (form, precision) in methods.items():
        contest = {key[2:]: seconds for key, seconds in times.items() if key[:2] == SHAPES[name]}
        assert len(contest) == 4, "both forms at both precisions"
        assert (form, precision) == min(contest, key=contest.get)
        runs[form, precision] = runs.get((form, precision), 0) + 1
    for (form, precision), count in runs.items():
        label = f'form="{form.removeprefix("FORM_").lower()}"', f'precision="{precision.removeprefix("PRECISION_").lower()}"'
        line = next(l for l in metrics.splitlines()
                    if l.startswith("dmuon_newton_schulz_runs_total{") and job in l and all(part in l for part in label))
        assert float(line.rsplit(" ", 1)[1]) == count


def test_a_restarted_daemon_knows_what_it_measured(daemon, pools, job):
    keywords = {"autotune": "cached"}
    pools(1).run(stepped, daemon.address, f"{job}.1", keywords)
    before = measured(daemon)
    assert "7 units measured, 0 known" in daemon.log()
    daemon.stop()
    daemon.start()
    assert measured(daemon) == before != {}
    pools(1).run(stepped, daemon.address, f"{job}.2", keywords)
    assert "0 units measured, 7 known" in daemon.log()
    assert measured(daemon) == before


def test_off_and_workers_that_measure_differ_only_by_rounding(pools, module_daemon, job):
    runs = {tuning: pools(2).run(stepped, module_daemon.address, f"{job}.{tuning}", {"autotune": tuning})
            for tuning in ("off", "on")}
    for params in runs["on"]:
        assert bits(params) == bits(runs["on"][0])
        for name, values in params.items():
            assert abs(values - runs["off"][0][name]).max() <= 1e-5


def test_the_environment_chooses_where_the_trainer_does_not(pools, module_daemon, job):
    refusal = pools(1).run(stepped, module_daemon.address, job, {}, {"DMUON_AUTOTUNE": "fast"})[0]
    assert "DMUON_AUTOTUNE is 'fast'; it must be off, cached or on" in refusal


def test_another_word_is_refused():
    with pytest.raises(ValueError, match="autotune is 'often'; it must be one of None, 'off', 'cached', 'on'"):
        dmuon.Muon(Bag(random_tensors(SHAPES, 0), "plain"), autotune="often")
