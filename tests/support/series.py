# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""What processes take over time, and whether it grows: memory, open descriptors, threads.

A series is of one process; one that is started again begins a new series. The samples of the warm-up are not judged, nor is
a process that was not there from its end to the end of the run. Of the others the median of the last quarter is held
against that of the first, quantity by quantity, by BOUNDS.
"""

import contextlib
import dataclasses
import os
import pathlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

# Largest growth from the first quarter to the last. Memory in MiB: what allocators keep in hand differs from moment to moment.
# Of pages that other processes use, too, pss has a larger part when those end. gRPC's executors grow to two threads a core.
BOUNDS: Mapping[str, float] = {"rss": 2.0, "pss": 4.0, "shmem": 0.5, "descriptors": 0.0, "threads": 0.0,
                               "pooled": 2.0 * (os.cpu_count() or 1)}
QUANTITIES = tuple(BOUNDS)
# Names of threads of gRPC, which has more or fewer of them as calls come.
POOLED = {"nexting_thread", "event_engine", "default-executo", "resolver-execut"}
FEWEST = 8  # samples; a quarter of fewer says nothing
MIB = 1 << 20


@dataclasses.dataclass(frozen=True)
class Usage:
    """Of a process at a moment, in seconds. `rss`, `pss` and `shmem` (the resident part of memory shared by a descriptor) in
    MiB. `threads` are without those in `pooled`."""

    at: float
    rss: float
    pss: float
    shmem: float
    descriptors: float
    threads: float
    pooled: float


def usage_of(pid: int, at: float) -> Usage:
    """ProcessLookupError or FileNotFoundError when there is no such process."""
    process = pathlib.Path("/proc", str(pid))
    status = _kilobytes((process / "status").read_text())
    pages = _kilobytes((process / "smaps_rollup").read_text())
    threads = list(_thread_names(process))
    pooled = sum(name in POOLED for name in threads)
    return Usage(at, status["VmRSS"] / 1024, pages["Pss"] / 1024, status["RssShmem"] / 1024,
                 len(os.listdir(process / "fd")), len(threads) - pooled, pooled)


def _thread_names(process: pathlib.Path) -> Iterator[str]:
    for thread in os.listdir(process / "task"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            yield (process / "task" / thread / "comm").read_text().strip()


def _kilobytes(text: str) -> dict[str, int]:
    """Lines such as "VmRSS:    13628 kB"."""
    words = (line.split() for line in text.splitlines())
    return {line[0].rstrip(":"): int(line[1]) for line in words if line[-1:] == ["kB"]}


@dataclasses.dataclass(frozen=True)
class Verdict:
    """One quantity of one process: medians, and the slope of a straight line through all samples, an hour."""

    process: str
    quantity: str
    first: float
    last: float
    slope: float

    @property
    def flat(self) -> bool:
        return self.last - self.first <= BOUNDS[self.quantity]


def judge(process: str, samples: Sequence[Usage]) -> Iterator[Verdict]:
    """Of samples after the warm-up, at least FEWEST."""
    quarter = len(samples) // 4
    times = [sample.at for sample in samples]
    for quantity in QUANTITIES:
        values = [getattr(sample, quantity) for sample in samples]
        # Medians that were sampled: half a descriptor is no number of descriptors.
        yield Verdict(process, quantity, statistics.median_high(values[:quarter]), statistics.median_high(values[-quarter:]),
                      3600.0 * statistics.linear_regression(times, values).slope)


class Recorder:
    """Samples processes by name, and tells at the end which of them stayed as they were."""

    def __init__(self, read: Callable[[int, float], Usage] = usage_of, clock: Callable[[], float] = time.monotonic) -> None:
        self._read, self._clock = read, clock
        self._series: dict[tuple[str, int], list[Usage]] = {}

    def sample(self, processes: Mapping[str, int]) -> None:
        """`processes`: the pid of each."""
        for name, pid in processes.items():
            self._series.setdefault((name, pid), []).append(self._read(pid, self._clock()))

    def latest(self, name: str) -> Usage:
        return max((series[-1] for (of, _), series in self._series.items() if of == name), key=lambda usage: usage.at)

    def verdicts(self, warm_up_end: float) -> list[Verdict]:
        """Of each process that was there from the first sample after the warm-up to the last one."""
        after = {key: [usage for usage in series if usage.at >= warm_up_end] for key, series in self._series.items()}
        most = max(map(len, after.values()), default=0)
        return [verdict for (name, pid), samples in after.items() if len(samples) == most >= FEWEST
                for verdict in judge(f"{name} ({pid})", samples)]

    def restarted(self) -> dict[str, int]:
        """How many processes there were of each name of which there was more than one."""
        names = [name for name, _ in self._series]
        return {name: names.count(name) for name in dict.fromkeys(names) if names.count(name) > 1}


def table(verdicts: Sequence[Verdict]) -> str:
    lines = [f"{'process':<24}{'':<14}{'first quarter':>14}{'last quarter':>14}{'an hour':>10}{'may grow':>10}  verdict"]
    for v in verdicts:
        lines.append(f"{v.process:<24}{v.quantity:<14}{v.first:>14.2f}{v.last:>14.2f}{v.slope:>+10.2f}"
                     f"{BOUNDS[v.quantity]:>10.1f}  {'flat' if v.flat else 'NOT FLAT'}")
    return "\n".join(lines)


def findings(verdicts: Sequence[Verdict], wanted: Sequence[str]) -> list[str]:
    """What is wrong: quantities that grew, and names in `wanted` of which no process could be judged."""
    grown = [f"{v.process}: {v.quantity} grew from {v.first:.2f} to {v.last:.2f}" for v in verdicts if not v.flat]
    judged = {v.process.split(" ")[0] for v in verdicts}
    return grown + [f"{name}: no process was there for {FEWEST} samples after the warm-up" for name in wanted
                    if name not in judged]
