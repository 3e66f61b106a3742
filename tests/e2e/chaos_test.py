# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""Three nodes under random faults of workers, nodes and links: what the workers are told keeps every promise of
history.py, and each step has the bits that it has in an undisturbed run.

DMUON_CHAOS_SEED repeats the faults of a run, whose moments are steps; DMUON_CHAOS_STEPS makes it shorter or longer.
Where network namespaces are not permitted no link is cut, and the output says so.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import random
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator

import history
import pytest
from dmuon_client import _abi
from dmuon_fixtures import Cluster, Network
from worker_run import WorkerRun

WORKER = pathlib.Path(__file__).with_name("chaos_worker.py")
NODES, WORKERS = 3, 6
STEPS = int(os.environ.get("DMUON_CHAOS_STEPS", "200"))
STEP_TIMEOUT = 1.0  # a stop may be longer; a node's lease is 20 s
PROGRESS_SECONDS = 60.0  # from fault to fault; a run that takes longer stands still
LOCAL_FAULTS = ("kill worker", "freeze worker", "freeze node", "kill coordinator")
LOSSES = ("kill node",)  # and all that it holds
LINK_FAULTS = ("cut link", "unplug node")


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


def draw_moments(draw: random.Random, kinds: tuple[str, ...]) -> list[Moment]:
    """Every few steps one fault or two of different kinds, most of them short, some longer than a step may take."""
    moments, step = [], 0
    while (step := step + draw.randint(3, 10)) < STEPS:
        seconds = draw.uniform(0.02, 0.3) if draw.random() < 0.85 else draw.uniform(1.1, 1.6) * STEP_TIMEOUT
        faults = []
        for kind in dict.fromkeys(draw.sample(kinds, draw.choice((1, 1, 2)))):
            victim, other = draw.sample(range(NODES), 2)
            victim = draw.randrange(WORKERS) if kind.endswith("worker") else victim
            faults.append(Fault(kind, victim, other, draw.choice(("to", "from", "both"))))
        moments.append(Moment(step, draw.uniform(0.0, 0.03), seconds, tuple(faults)))
    return moments


class Stage:
    """A cluster, its network if there is one, a run of the job, and the history that it writes."""

    def __init__(self, cluster: Cluster, network: Network | None, job: str, folder: pathlib.Path,
                 replication: int) -> None:
        self._cluster, self._network, self._job = cluster, network, job
        self.path, self._over = folder / f"{job}.jsonl", folder / f"{job}.over"
        self._history = history.History(self.path)
        addresses = cluster.addresses(WORKERS)
        self.run = WorkerRun([[sys.executable, str(WORKER), json.dumps(
            {"rank": rank, "world_size": WORKERS, "node": rank * NODES // WORKERS, "address": addresses[rank],
             "job": job, "steps": STEPS, "history": str(self.path), "over": str(self._over),
             "replication": replication})]
            for rank in range(WORKERS)])

    def suffer(self, moment: Moment) -> None:
        self._await(lambda: self._last_step() >= moment.step)
        time.sleep(moment.delay)
        with contextlib.ExitStack() as stack:
            for fault in moment.faults:
                self._history.add("fault", **dataclasses.asdict(fault))
                stack.enter_context(self._fault(fault))
            if not all(fault.kind.startswith("kill") for fault in moment.faults):  # the dead would be back long before
                time.sleep(moment.seconds)
        self._history.add("faults over")
        if any(fault.kind in LOSSES for fault in moment.faults):
            # A node whose buddy is lost before it has its state back is lost for good: that is another test's.
            before = self._last_step()
            self._await(lambda: self._last_step() >= min(before + 2, STEPS))

    def _last_step(self) -> int:
        return max(history.last_steps(self._history.latest()).values(), default=0)

    def finish(self) -> list[history.Fact]:
        """When the last step is known to all, nobody needs the others any more."""
        workers = {worker.pid: STEPS for worker in self.run.workers}
        self._await(lambda: workers.items() <= history.last_steps(self._history.facts()).items())
        self._await(self._all_attached)
        self._over.touch()
        self.run.join(PROGRESS_SECONDS)
        return self._history.facts()

    def _all_attached(self) -> bool:
        """A node that was killed last has its workers again, whose end it tells the others."""
        jobs = [job for node in self._cluster.nodes for job in node.status()["node"].get("jobs", [])]
        return sum(len(job["attached_ranks"]) for job in jobs if job["job_id"] == self._job) == WORKERS

    def close(self) -> None:
        self.run.stop()
        self._history.close()

    def _await(self, reached: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PROGRESS_SECONDS
        while not reached():
            assert self.run.running, [worker.communicate()[1] for worker in self.run.workers if worker.poll()]
            assert time.monotonic() < deadline, f"no progress in {PROGRESS_SECONDS} s"
            time.sleep(0.005)

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


def await_no_jobs(cluster: Cluster) -> None:
    """The nodes hear from the coordinator that the job has ended on all of them."""
    deadline = time.monotonic() + PROGRESS_SECONDS
    while any(left := [node.status()["node"].get("jobs", []) for node in cluster.nodes]):
        assert time.monotonic() < deadline, f"jobs stay behind: {left}"
        time.sleep(0.05)


@pytest.fixture
def network():
    try:
        made = Network(NODES)
    except pytest.skip.Exception as reason:
        print(f"no link will be cut: {reason}")
        yield None
        return
    yield made
    made.close()


@pytest.fixture
def cluster(network):
    made = Cluster(NODES, "--step-timeout", str(STEP_TIMEOUT), "--attach-timeout", "0.5", network=network)
    try:
        yield made.start()
        made.stop()
    finally:
        made.close()


@pytest.mark.parametrize("replication", ["none", "sync"])
def test_faults_break_no_promise_and_change_no_bit(cluster, network, job, tmp_path, replication):
    seed = int(os.environ.get("DMUON_CHAOS_SEED") or random.SystemRandom().randrange(1 << 32))
    losses = LOSSES * 4 if replication == "sync" else ()  # the others do not come alone where these come
    moments = draw_moments(random.Random(seed), LOCAL_FAULTS + losses + (LINK_FAULTS if network else ()))
    mode = {"none": _abi.DMUON_REPLICATION_NONE, "sync": _abi.DMUON_REPLICATION_SYNC}[replication]
    print(f"DMUON_CHAOS_SEED={seed} DMUON_CHAOS_STEPS={STEPS}: faults at {len(moments)} moments")
    stages = []
    try:
        stages.append(Stage(cluster, network, f"{job}.calm", tmp_path, mode))
        calm = stages[0].finish()
        stages.append(Stage(cluster, network, f"{job}.chaos", tmp_path, mode))
        for moment in moments:
            stages[1].suffer(moment)
        chaos = stages[1].finish()
        assert history.findings(calm, STEPS) == []
        for kind, seconds in history.pauses(chaos).items():
            print(f"{kind}: {len(seconds)} times, next step after {statistics.median(seconds):.2f} s, at most "
                  f"{max(seconds):.2f} s")
        assert history.findings(chaos, STEPS, nodes_die=bool(losses)) + history.differences(chaos, calm) == []
        assert not any(fact.get("skipped") for fact in chaos)
        await_no_jobs(cluster)
    except BaseException:
        print(*(f"history: {stage.path}" for stage in stages), cluster.log(), sep="\n")
        raise
    finally:
        for stage in stages:
            stage.close()
