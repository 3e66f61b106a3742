# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""Processes that are frozen for longer than a lease, and wake up: they change nothing that has gone on without them."""

import signal
import time

import history
import pytest
from chaos_test import await_no_jobs
from dmuon_fixtures import Cluster, Daemon
from trial import Trial

NODES, WORKERS, VICTIM = 3, 6, 2
STEPS, FROZEN_AFTER = 24, 6
LEASE_SECONDS = 1.5  # of a cluster on unix sockets, where no keepalive bounds it
FLAGS = ("--step-timeout", "1", "--attach-timeout", "0.5")


@pytest.fixture(scope="module")
def cluster():
    made = Cluster(NODES, *FLAGS, coordinator_flags=("--lease", str(LEASE_SECONDS)))
    try:
        yield made.start()
        made.stop()
    finally:
        made.close()


@pytest.fixture(scope="module")
def calm(cluster, tmp_path_factory):
    trial = Trial(cluster, "calm", tmp_path_factory.mktemp("calm"), WORKERS, STEPS)
    try:
        facts = trial.finish()
        trial.join()
    finally:
        trial.close()
    return facts


@pytest.fixture
def trial(cluster, job, tmp_path):
    """Of which the workers have been told of some steps."""
    made = Trial(cluster, job, tmp_path, WORKERS, STEPS)
    try:
        made.until("some steps", lambda: made.last_step() >= FROZEN_AFTER)
        yield made
    finally:
        for process in (cluster.nodes[VICTIM].signal, cluster.signal_coordinator):
            process(signal.SIGCONT)
        made.close()


def outs(cluster) -> int:
    return cluster.coordinator_log().count(f"node node-{VICTIM} is out")


def finish(trial, cluster, calm) -> None:
    facts = trial.finish()
    trial.join()
    assert history.findings(facts, STEPS, nodes_die=True) + history.differences(facts, calm) == []
    await_no_jobs(cluster)


def test_a_node_that_is_out_when_it_wakes_up_goes_on(cluster, calm, trial):
    before = outs(cluster)
    cluster.nodes[VICTIM].signal(signal.SIGSTOP)
    trial.until("the end of the lease", lambda: outs(cluster) > before)
    cluster.nodes[VICTIM].signal(signal.SIGCONT)
    finish(trial, cluster, calm)


def test_a_coordinator_that_wakes_up_finds_the_job_further_on(cluster, calm, trial):
    cluster.signal_coordinator(signal.SIGSTOP)
    frozen = time.monotonic()
    trial.until("the last step", lambda: trial.last_step() == STEPS)
    trial.until("the end of the lease", lambda: time.monotonic() > frozen + 1.2 * LEASE_SECONDS)
    cluster.signal_coordinator(signal.SIGCONT)
    trial.until("the nodes' return", lambda: cluster.joined() == NODES)
    finish(trial, cluster, calm)


def test_a_node_that_was_replaced_stays_out_when_it_wakes_up(cluster, calm, trial):
    """The cluster's last node is another process from here on, as on another host."""
    old, before = cluster.nodes[VICTIM], outs(cluster)
    old.signal(signal.SIGSTOP)
    trial.until("the end of the lease", lambda: outs(cluster) > before)
    cluster.nodes[VICTIM] = Daemon("--node-id", f"node-{VICTIM}", *FLAGS, coordinator=cluster.coordinator)
    try:
        cluster.nodes[VICTIM].start()
        for rank in range(WORKERS * VICTIM // NODES, WORKERS):
            trial.move(rank, cluster.nodes[VICTIM].address)
        gone_on = trial.last_step() + 3
        trial.until("steps with the successor", lambda: trial.last_step() >= gone_on)
        old.signal(signal.SIGCONT)
        trial.until("its refusal", lambda: "was followed by another process" in old.log())
        finish(trial, cluster, calm)
    finally:
        old.close()
