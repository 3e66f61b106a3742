# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""Three nodes under random faults: the run ends with the bits of an undisturbed one."""

import os
import random
import signal
import time

import pytest
from dmuon_fixtures import Cluster
from mlp_run import MlpRun

NODES = 3
STEPS = 200
STEP_TIMEOUT = 1.0


@pytest.fixture
def three_nodes():
    made = Cluster(NODES, "--step-timeout", str(STEP_TIMEOUT), "--attach-timeout", "0.5")
    try:
        yield made.start()
        made.stop()
    finally:
        made.close()


def freeze(pid: int, seconds: float) -> None:
    os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)
    os.kill(pid, signal.SIGCONT)


def test_faults_leave_no_trace_in_the_result(three_nodes, job, tmp_path):
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    addresses = three_nodes.addresses(NODES)
    history, runs = [], []
    try:
        runs.append(MlpRun(addresses, f"{job}.calm", tmp_path, STEPS))
        calm = runs[0].finish()
        runs.append(MlpRun(addresses, f"{job}.chaos", tmp_path, STEPS, step_ms=20))
        while runs[1].running and len(history) < 12:
            time.sleep(draw.uniform(0.05, 0.4))
            victim = draw.randrange(NODES)
            fault = draw.choice(["kill worker", "stall node", "freeze node", "freeze worker"])
            history.append((fault, victim))
            if fault == "kill worker":
                runs[1].kill_and_restart(victim)
            elif fault == "freeze worker":
                freeze(runs[1].workers[victim].pid, draw.uniform(0.1, 2 * STEP_TIMEOUT))
            else:
                shortest = 0.05 if fault == "stall node" else 1.2 * STEP_TIMEOUT
                freeze(three_nodes.nodes[victim].pid, draw.uniform(shortest, shortest + 0.5))
        chaos = runs[1].finish()
    except BaseException:
        print(f"faults {history}\n{three_nodes.log()}")
        raise
    finally:
        for run in runs:
            run.stop()
    assert len(history) >= 5
    assert {worker["checksum"] for worker in calm + chaos} == {calm[0]["checksum"]}, history
    assert [worker["skipped"] for worker in chaos] == [0] * NODES
