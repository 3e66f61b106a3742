# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""Processes that are frozen for longer than a lease, and wake up: they change nothing that has gone on without them, and
the job goes on with the bits of an undisturbed run."""

import signal
import time

import history
import pytest
from chaos import await_no_jobs
from dmuon_fixtures import Cluster, Daemon
from trial import Trial

NODES, PLACES, VICTIM = 3, (0, 0, 1, 2), 2
STEPS = 60
LEASE_SECONDS = 1.0  # of a cluster on unix sockets, where no keepalive bounds it
FLAGS = ("--step-timeout", "1", "--attach-timeout", "0.5")


@pytest.fixture
def cluster():
    made = Cluster(NODES, *FLAGS, coordinator_flags=("--lease", str(LEASE_SECONDS)))
    try:
        yield made.start()
        made.stop()
    finally:
        made.close()


def run(cluster, job, folder, disturb) -> list[history.Fact]:
    trial = Trial(cluster, job, folder, PLACES, STEPS)
    try:
        disturb(trial)
        facts = trial.finish()
        trial.join()
    finally:
        trial.close()
    return facts


class Faults:
    """Of a cluster, beside a run."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def wake_the_node(self, trial: Trial) -> None:
        self.freeze_the_node(trial)
        self._cluster.nodes[VICTIM].signal(signal.SIGCONT)
        trial.until("the node's return", lambda: self._cluster.joined() == NODES)
        self.go_on(trial)

    def replace_the_node(self, trial: Trial) -> None:
        """As on another host: with another process, and workers beside it."""
        old = self._cluster.nodes[VICTIM]
        self.freeze_the_node(trial)
        self._cluster.nodes[VICTIM] = Daemon("--node-id", f"node-{VICTIM}", *FLAGS, coordinator=self._cluster.coordinator)
        try:
            self._cluster.nodes[VICTIM].start()
            trial.move(len(PLACES) - 1, self._cluster.nodes[VICTIM].address)
            self.go_on(trial)
            old.signal(signal.SIGCONT)
            trial.until("its refusal", lambda: "was followed by another process" in old.log())
            self.go_on(trial)
        finally:
            old.close()

    def wake_the_coordinator(self, trial: Trial) -> None:
        """Steps do not need it."""
        self._cluster.signal_coordinator(signal.SIGSTOP)
        try:
            frozen = time.monotonic()
            trial.until("the last step", lambda: trial.last_step() == STEPS)
            trial.until("the end of the lease", lambda: time.monotonic() > frozen + 1.2 * LEASE_SECONDS)
        finally:
            self._cluster.signal_coordinator(signal.SIGCONT)
        trial.until("the nodes' return", lambda: self._cluster.joined() == NODES)

    def freeze_the_node(self, trial: Trial) -> None:
        """Until the others are told that it is out."""
        before, node = self._outs(), self._cluster.nodes[VICTIM]
        node.signal(signal.SIGSTOP)
        try:
            trial.until("the end of the lease", lambda: self._outs() > before)
        except BaseException:
            node.signal(signal.SIGCONT)  # so that it can be ended in order
            raise

    def go_on(self, trial: Trial) -> None:
        some = min(trial.last_step() + 3, STEPS)
        trial.until("some steps", lambda: trial.last_step() >= some)

    def _outs(self) -> int:
        return self._cluster.coordinator_log().count(f"node node-{VICTIM} is out")


def test_whoever_wakes_up_after_its_lease_changes_nothing(cluster, job, tmp_path):
    calm = run(cluster, f"{job}.calm", tmp_path, lambda trial: None)
    faults = Faults(cluster)

    def disturb(trial: Trial) -> None:
        faults.go_on(trial)
        faults.wake_the_node(trial)
        faults.replace_the_node(trial)
        faults.wake_the_coordinator(trial)

    facts = run(cluster, f"{job}.frozen", tmp_path, disturb)
    assert history.findings(calm, STEPS) == []
    assert history.findings(facts, STEPS, nodes_die=True) + history.differences(facts, calm) == []
    await_no_jobs(cluster)
