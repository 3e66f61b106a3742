# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""Nodes that cannot reach each other for longer than a step may take: the step ends with an error that
names the peer, and when the network is back the run goes on with the same bits."""

import time

import pytest
from dmuon_fixtures import Cluster, Network
from mlp_run import MlpRun

STEPS = 300
CUT_SECONDS = 2.5  # longer than the step timeout


@pytest.fixture
def network():
    made = Network(2)
    yield made
    made.close()


@pytest.fixture
def nodes(network):
    made = Cluster(2, "--step-timeout", "1", "--attach-timeout", "0.5", network=network)
    try:
        yield made.start()
        made.stop()
    finally:
        made.close()


def cut(network, how: str, away: bool) -> None:
    if how == "both directions":
        network.plug(1, in_=not away)
    else:
        target = 0 if how == "to node-0" else 1
        network.cut(1 - target, target, away)


def test_a_cut_link_changes_no_bit(network, nodes, job, tmp_path):
    runs = []
    try:
        runs.append(MlpRun(nodes.addresses(2), f"{job}.calm", tmp_path, STEPS))
        calm = runs[0].finish()
        runs.append(MlpRun(nodes.addresses(2), f"{job}.cut", tmp_path, STEPS, step_ms=10))
        for how in ("both directions", "to node-0", "to node-1"):
            time.sleep(0.3)
            assert runs[1].running
            cut(network, how, True)
            time.sleep(CUT_SECONDS)
            cut(network, how, False)
        torn = runs[1].finish()
    except BaseException:
        print(nodes.log())
        raise
    finally:
        for run in runs:
            run.stop()
    assert {worker["checksum"] for worker in calm + torn} == {calm[0]["checksum"]}
    failures = [line for line in nodes.log().splitlines() if f"{job}.cut: step" in line and "failed" in line]
    assert failures and all("node-0" in line or "node-1" in line for line in failures), failures
