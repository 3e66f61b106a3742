# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""Three nodes under random faults of workers, nodes and links, some of which are drained meanwhile: what the workers are told
keeps every promise of history.py, and each step has the bits that it has in an undisturbed run.

DMUON_CHAOS_SEED repeats the faults of a run, whose moments are steps; DMUON_CHAOS_STEPS makes it shorter or longer.
Where network namespaces are not permitted no link is cut, and the output says so.
"""

import itertools
import os
import random
import statistics

import chaos
import history
import pytest
from dmuon_client import _abi
from dmuon_fixtures import Cluster

STEPS = int(os.environ.get("DMUON_CHAOS_STEPS", "200"))


@pytest.fixture
def network():
    made = chaos.make_network()
    yield made
    if made is not None:
        made.close()


@pytest.fixture
def cluster(network):
    made = Cluster(chaos.NODES, "--step-timeout", str(chaos.STEP_TIMEOUT), "--attach-timeout", "0.5", network=network)
    try:
        yield made.start()
        made.stop()
    finally:
        made.close()


@pytest.mark.parametrize("replication", ["none", "sync"])
def test_faults_break_no_promise_and_change_no_bit(cluster, network, job, tmp_path, replication):
    seed = int(os.environ.get("DMUON_CHAOS_SEED") or random.SystemRandom().randrange(1 << 32))
    losses = chaos.LOSSES * 4 if replication == "sync" else ()  # the others do not come alone where these come
    kinds = chaos.LOCAL_FAULTS + 2 * chaos.OPERATIONS + losses + (chaos.LINK_FAULTS if network else ())
    moments = list(itertools.takewhile(lambda moment: moment.step < STEPS, chaos.draw_moments(random.Random(seed), kinds)))
    mode = {"none": _abi.DMUON_REPLICATION_NONE, "sync": _abi.DMUON_REPLICATION_SYNC}[replication]
    print(f"DMUON_CHAOS_SEED={seed} DMUON_CHAOS_STEPS={STEPS}: faults at {len(moments)} moments")
    stages = []
    try:
        stages.append(chaos.Stage(cluster, network, f"{job}.calm", tmp_path, mode, STEPS))
        calm = stages[0].finish()
        stages.append(chaos.Stage(cluster, network, f"{job}.chaos", tmp_path, mode, STEPS))
        for moment in moments:
            stages[1].suffer(moment)
        disturbed = stages[1].finish()
        assert history.findings(calm, STEPS) == []
        for kind, seconds in history.pauses(disturbed).items():
            print(f"{kind}: {len(seconds)} times, next step after {statistics.median(seconds):.2f} s, at most "
                  f"{max(seconds):.2f} s")
        wrong = history.findings(disturbed, STEPS, nodes_die=bool(losses), owners_change=True)
        assert wrong + history.differences(disturbed, calm, owners_change=True) == []
        assert not any(fact.get("skipped") for fact in disturbed)
        chaos.await_no_jobs(cluster)
    except BaseException:
        print(*(f"history: {stage.path}" for stage in stages), cluster.log(), sep="\n")
        raise
    finally:
        for stage in stages:
            stage.close()
