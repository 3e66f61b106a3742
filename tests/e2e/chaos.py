# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""Nodes under random faults of workers, nodes and links, while nodes are drained: which come when, and a run of a job that
suffers them."""

import contextlib
import dataclasses
import os
import pathlib
import random
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from typing import Any

import history
import pytest
from dmuon_fixtures import PATIENCE_SECONDS, Cluster, Network
from trial import PLACES, Trial

NODES = 3
WORKERS = len(PLACES)
STEP_TIMEOUT = 1.0  # a stop may be longer; a node's lease is 20 s
LOCAL_FAULTS = ("kill worker", "freeze worker", "freeze node", "kill coordinator")
LOSSES = ("kill node",)  # and all that it holds
LINK_FAULTS = ("cut link", "unplug node")
OPERATIONS = ("drain node",)  # or, where one is drained, let that one own units again


@dataclasses.dataclass(frozen=True)
class Fault:
    """`victim` is a rank or a node. `way` is that of a cut: to, from, or both."""

    kind: str
    victim: int
    other: int
    way: str


@dataclasses.dataclass(frozen=True)
class Moment:
    """Faults at the same time, `delay` seconds after a step is done."""

    step: int
    delay: float
    seconds: float
    faults: tuple[Fault, ...]


def draw_moments(draw: random.Random, kinds: Sequence[str]) -> Iterator[Moment]:
    """Every few steps one fault or two of different kinds, most of them short, some longer than a step may take."""
    step = 0
    while True:
        step += draw.randint(3, 10)
        seconds = draw.uniform(0.02, 0.3) if draw.random() < 0.85 else draw.uniform(1.1, 1.6) * STEP_TIMEOUT
        faults = []
        for kind in dict.fromkeys(draw.sample(kinds, draw.choice((1, 1, 2)))):
            victim, other = draw.sample(range(NODES), 2)
            victim = draw.randrange(WORKERS) if kind.endswith("worker") else victim
            faults.append(Fault(kind, victim, other, draw.choice(("to", "from", "both"))))
        yield Moment(step, draw.uniform(0.0, 0.03), seconds, tuple(faults))


class Stage(Trial):
    """A trial whose nodes, workers and links suffer faults. `options` are more arguments of chaos_worker.py."""

    def __init__(self, cluster: Cluster, network: Network | None, job: str, folder: pathlib.Path, replication: int,
                 steps: int, places: Sequence[int] = PLACES, **options: Any) -> None:
        self._network, self._end = network, folder / f"{job}.end"
        self._drained: int | None = None
        self._operator: subprocess.Popen | None = None
        super().__init__(cluster, job, folder, places, steps, replication=replication, end=str(self._end), **options)

    def suffer(self, moment: Moment) -> None:
        self.await_step(moment.step)
        time.sleep(moment.delay)
        with contextlib.ExitStack() as stack:
            for fault in moment.faults:
                self._history.add("fault", **dataclasses.asdict(fault))
                stack.enter_context(self._fault(fault))
            if not all(fault.kind.startswith(("kill", "drain")) for fault in moment.faults):  # they would be over long before
                time.sleep(moment.seconds)
        self._history.add("faults over")
        if any(fault.kind in LOSSES for fault in moment.faults):
            # A node whose buddy is lost before it has its state back is lost for good: that is another test's.
            self.await_step(self.last_step() + 2)

    def _operate(self, node: int) -> None:
        """As an operator does who does not wait for the end of it."""
        self._stop_operator()
        undo = self._drained is not None
        self._operator = self._cluster.start_drain(f"node-{self._drained if undo else node}", undo)
        self._drained = None if undo else node

    def _stop_operator(self) -> None:
        if self._operator is not None:
            self._operator.kill()
            self._operator.wait()
            self._operator = None

    def undrain(self) -> None:
        """All nodes may own units again: one may be drained whose operator heard no answer. A job that takes no step any more
        need not go over for it."""
        self._stop_operator()
        self._drained = None

        def is_undone() -> bool:
            members = [self._cluster.member(f"node-{node}") for node in range(len(self._cluster.nodes))]
            for node in members:
                if node.get("drained"):
                    self._cluster.drain(node["node"]["node_id"], undo=True, seconds=1)
            return all(members) and not any(node["drained"] for node in members)

        self.until("the end of all drains", is_undone)

    def close(self) -> None:
        self._stop_operator()
        super().close()

    def await_step(self, step: int) -> None:
        self.until(f"step {step}", lambda: self.last_step() >= min(step, self._steps))

    def end_soon(self) -> int:
        """The step with which the run is to end: one that no worker has reached."""
        self._steps = min(self._steps, self.last_step() + 20)
        draft = self._end.with_suffix(".draft")
        draft.write_text(str(self._steps))
        draft.rename(self._end)
        return self._steps

    def finish(self) -> list[history.Fact]:
        """As of Trial; a node that was killed last has its workers again, and all have ended."""
        self.until("the last step", self._all_done)
        self.until("all workers attached", self._all_attached)
        self.undrain()
        facts = super().finish()
        self.join()
        return facts

    def _all_attached(self) -> bool:
        """A node that was killed last has its workers again, whose end it tells the others."""
        jobs = [job for node in self._cluster.nodes for job in node.status()["node"].get("jobs", [])]
        return sum(len(job["attached_ranks"]) for job in jobs if job["job_id"] == self.job) == len(self.run.workers)

    @contextlib.contextmanager
    def _fault(self, fault: Fault) -> Iterator[None]:
        if fault.kind == "kill worker":
            self.run.kill_and_restart(fault.victim)
            yield
        elif fault.kind == "kill coordinator":
            self._cluster.kill_coordinator()
            self._cluster.start_coordinator()
            yield
        elif fault.kind == "kill node":
            self._cluster.nodes[fault.victim].kill()
            self._cluster.nodes[fault.victim].start()
            yield
        elif fault.kind == "drain node":
            self._operate(fault.victim)
            yield
        elif fault.kind == "freeze worker":
            worker = self.run.workers[fault.victim]  # by its handle: it may be killed meanwhile
            worker.send_signal(signal.SIGSTOP)
            yield
            worker.send_signal(signal.SIGCONT)
        elif fault.kind == "freeze node":
            os.kill(self._cluster.nodes[fault.victim].pid, signal.SIGSTOP)
            yield
            os.kill(self._cluster.nodes[fault.victim].pid, signal.SIGCONT)
        else:
            self._break_links(fault, True)
            yield
            self._break_links(fault, False)

    def _break_links(self, fault: Fault, broken: bool) -> None:
        if fault.kind == "unplug node":
            return self._network.plug(fault.victim, in_=not broken)
        if fault.way != "from":
            self._network.cut(fault.other, fault.victim, broken)
        if fault.way != "to":
            self._network.cut(fault.victim, fault.other, broken)


def await_no_jobs(cluster: Cluster, but: Sequence[str] = ()) -> None:
    """The nodes hear from the coordinator that jobs have ended on all of them."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while left := [job["job_id"] for node in cluster.nodes for job in node.status()["node"].get("jobs", [])
                   if job["job_id"] not in but]:
        assert time.monotonic() < deadline, f"jobs stay behind: {left}"
        time.sleep(0.05)


def make_network() -> Network | None:
    """None, and a line that says why, where it is not permitted."""
    try:
        return Network(NODES)
    except pytest.skip.Exception as reason:
        print(f"no link will be cut: {reason}")
        return None
