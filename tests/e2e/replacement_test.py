# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""A host is lost for good: its daemon and its workers are killed, and the workers come back beside a daemon of another name.
With copies of its state the job goes on with the bits of an undisturbed run; without, all are told, and begin from a checkpoint."""

import itertools

import history
import pytest
from chaos import await_no_jobs
from dmuon_client import _abi
from dmuon_fixtures import Cluster, Daemon
from trial import PLACES, Trial

NODES, VICTIM = 3, 2
STEPS, SAVE_EVERY = 16, 4
LEASE_SECONDS = 1.0  # of a cluster on unix sockets, where no keepalive bounds it


class Hosts:
    """Three, of which the last one is replaced by another one."""

    def __init__(self, saves) -> None:
        self._flags = ("--step-timeout", "1", "--attach-timeout", "0.5", "--checkpoint-dir", str(saves))
        self.cluster = Cluster(NODES, *self._flags, coordinator_flags=("--lease", str(LEASE_SECONDS)))
        self._names = (f"node-{number}" for number in itertools.count(NODES))  # sums are in the order of names

    def lose_one(self, trial: Trial) -> None:
        """Until the coordinator takes it for out: before that, its workers might come back to it."""
        before = self._outs()
        self.cluster.nodes[VICTIM].close()
        for rank in self.ranks():
            trial.run.kill(rank)
        self.cluster.nodes[VICTIM] = Daemon("--node-id", next(self._names), *self._flags, coordinator=self.cluster.coordinator)
        self.cluster.nodes[VICTIM].start()
        trial.until("the end of the lease", lambda: self._outs() > before)

    def come_back(self, trial: Trial) -> None:
        for rank in self.ranks():
            trial.move(rank, self.cluster.nodes[VICTIM].address)

    @staticmethod
    def ranks() -> list[int]:
        return [rank for rank, place in enumerate(PLACES) if place == VICTIM]

    def _outs(self) -> int:
        return self.cluster.coordinator_log().count(" is out: ")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    made = Hosts(tmp_path_factory.mktemp("saves"))
    try:
        made.cluster.start()
        yield made
        made.cluster.stop()
    finally:
        made.cluster.close()


@pytest.fixture
def begin(hosts, tmp_path):
    """begin(job, **options): a Trial over the hosts that there are now."""
    trials = []

    def build(job, **options):
        trials.append(Trial(hosts.cluster, job, tmp_path, PLACES, STEPS, save_every=SAVE_EVERY, **options))
        return trials[-1]

    yield build
    for trial in trials:
        trial.close()


@pytest.fixture(scope="module")
def calm(hosts, tmp_path_factory):
    trial = Trial(hosts.cluster, "calm", tmp_path_factory.mktemp("calm"), PLACES, STEPS, save_every=SAVE_EVERY)
    try:
        facts = ended(trial)
    finally:
        trial.close()
    assert history.findings(facts, STEPS) == []
    return facts


def ended(trial: Trial) -> list[history.Fact]:
    facts = trial.finish()
    trial.join()
    return facts


def test_workers_of_a_lost_host_come_back_on_another_one_and_no_bit_changes(hosts, calm, begin, job):
    trial = begin(f"{job}.moved", pause_seconds=0.02)
    trial.until("some steps", lambda: trial.last_step() >= 3)
    hosts.lose_one(trial)
    hosts.come_back(trial)
    facts = ended(trial)
    assert history.findings(facts, STEPS, nodes_die=True) + history.differences(facts, calm) == []
    generations = [fact["generation"] for fact in facts if fact["fact"] == "registered" and fact["rank"] == PLACES.index(VICTIM)]
    assert len(set(generations)) == 2, generations
    await_no_jobs(hosts.cluster)


def test_without_copies_all_are_told_and_go_on_from_a_checkpoint(hosts, calm, begin, job):
    none = _abi.DMUON_REPLICATION_NONE
    lost = begin(f"{job}.lost", replication=none, pause_seconds=0.02)
    saved = f"job {lost.job}: checkpoint 'step-{SAVE_EVERY}' of step {SAVE_EVERY} exists"
    lost.until("a checkpoint", lambda: saved in hosts.cluster.nodes[0].log())
    hosts.lose_one(lost)
    hosts.come_back(lost)
    for rank in set(range(len(PLACES))) - set(hosts.ranks()):
        _, errors = lost.run.workers[rank].communicate(timeout=60)
        assert "DMUON_STATE_LOST" in errors and "load a checkpoint" in errors
    lost.run.stop()
    await_no_jobs(hosts.cluster)
    again = begin(f"{job}.lost", replication=none, load=f"step-{SAVE_EVERY}")
    facts = ended(again)
    assert [fact["step"] for fact in facts if fact["fact"] == "begun"] == len(PLACES) * [SAVE_EVERY]
    assert history.differences(facts, calm) + list(history.no_step_is_applied_twice(facts, STEPS)) == []
    await_no_jobs(hosts.cluster)
