# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""A node without workers (dmuond --owns all) joins a job that trains, saves and loads with it, is drained and ends: no bit
changes."""

import time

import dmuon_client as dmuon
import pytest
import torch
import trainers
from dmuon_fixtures import PATIENCE_SECONDS, Cluster
from stops import beside, stop
from trainers import HYPERS, bits, step_with_random_gradients

WORKERS, STEPS, HELPER = 4, 12, 2


def train(rank: int, world_size: int, addresses: list[str], job: str, folder: str | None, replication: str) -> dict[str, object]:
    """After every third step this side says so, and waits for what is done meanwhile; after the sixth it saves, and after the
    eighth it goes back there once."""
    model = trainers.make_small(False, torch.float32)
    again = folder is not None
    with dmuon.Muon(model, job=job, address=addresses[rank], reduced=False, verbose=False,
                    replication=replication, **HYPERS) as opt:
        while opt.last_step < STEPS:
            step_with_random_gradients(rank, model, opt)
            if folder is None:
                continue
            if opt.last_step == 6 and again:
                opt.save("six")
            if opt.last_step == 8 and again:
                again = False
                opt.load("six")
                continue
            if opt.last_step % 3 == 0 and opt.last_step < STEPS:
                stop(folder, opt.last_step, rank)
        return {"params": {name: p.detach().clone().numpy() for name, p in model.named_parameters()}}


@pytest.fixture(params=["none", "sync"])
def replication(request: pytest.FixtureRequest) -> str:
    return request.param


def test_a_node_without_workers_joins_a_job_takes_part_in_all_of_it_and_leaves(pools, job, tmp_path, replication):
    pool = pools(WORKERS)
    disks = [tmp_path / f"disk{node}" for node in range(3)]
    for disk in disks:
        disk.mkdir()
    flags = [["--checkpoint-dir", str(disk)] for disk in disks]
    flags[HELPER] += ["--owns", "all"]
    cluster = Cluster(3, "--step-timeout", "20", node_flags=flags)
    said: list[str] = []
    try:
        cluster.start()
        cluster.nodes[HELPER].stop()
        addresses = [cluster.nodes[rank // 2].address for rank in range(WORKERS)]
        calm = pool.run(train, addresses, f"{job}.calm", None, replication)

        def owns() -> None:
            deadline = time.monotonic() + PATIENCE_SECONDS
            while int(cluster.member(f"node-{HELPER}").get("units", 0)) == 0:
                assert time.monotonic() < deadline, cluster.log()
                time.sleep(0.05)
            said.append("joined")

        def drain() -> None:
            answer = cluster.drain(f"node-{HELPER}")
            assert answer.returncode == 0, answer.stderr
            said.append(answer.stdout)

        calls = {3: [cluster.nodes[HELPER].start, owns], 6: [], 9: [drain, cluster.nodes[HELPER].stop]}
        with beside(tmp_path, WORKERS, calls):
            runs = pool.run(train, addresses, job, str(tmp_path), replication)
        assert all(bits(run["params"]) == bits(calm[0]["params"]) for run in runs)
        assert said[0] == "joined"
        assert f"node 'node-{HELPER}' owns nothing" in said[1]
        assert list(disks[HELPER].rglob("*.safetensors")), "the helper has written no part of the checkpoint"
        cluster.stop()
    finally:
        cluster.close()
