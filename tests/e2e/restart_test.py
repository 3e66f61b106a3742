# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""Workers die by kill -9 and come back; the run ends with the bits of an undisturbed one."""

import json
import os
import pathlib
import random
import subprocess
import sys
import time

import trainers
from mlp_run import MlpRun

HERE = pathlib.Path(__file__).resolve().parent


def test_ten_kills_leave_no_trace_in_the_result(daemon, job, tmp_path):
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    runs = []
    try:
        started = time.monotonic()
        runs.append(MlpRun([daemon.address] * 2, f"{job}.calm", tmp_path))
        calm = runs[0].finish()
        seconds = time.monotonic() - started
        runs.append(MlpRun([daemon.address] * 2, f"{job}.killed", tmp_path))
        kills = 0
        for _ in range(10):
            time.sleep(draw.uniform(0.0, seconds / 12))
            kills += runs[1].kill_and_restart(draw.randrange(2))
        killed = runs[1].finish()
    finally:
        for run in runs:
            run.stop()
    assert kills == 10
    assert max(worker["first_step"] for worker in killed) > 1
    assert {worker["checksum"] for worker in calm + killed} == {calm[0]["checksum"]}
    assert [worker["skipped"] for worker in killed] == [0, 0]


def torchrun(address: str, job: str, file: pathlib.Path, steps: int, *deaths: str) -> dict:
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", "2",
               "--max-restarts", "3", "--monitor-interval", "0.1", "--rdzv-backend", "c10d",
               "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1", "--rdzv-id", job,
               str(HERE / "restart_worker.py"), address, str(file), str(steps), *deaths]
    # Torch 2.13 keeps one store over all lives, in which Gloo finds the addresses of the dead.
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
                                "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(file.read_text())


def test_fsdp_run_under_torchrun_resumes_where_the_service_is(daemon, pools, job, tmp_path):
    calm = pools(2).run(trainers.train, daemon.address, f"{job}.calm", steps=12)[0]
    killed = torchrun(daemon.address, f"{job}.killed", tmp_path / "killed", 12, "1:4", "0:9")
    assert (killed["lives"], killed["resumed_at"]) == (3, 9)
    assert killed["params"] == {name: value.tobytes().hex() for name, value in calm["params"][-1].items()}
    assert killed["calls"] == calm["calls"]
