# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""dmuonctl drain and undrain while a job trains: no bit changes, and a drained daemon may be started again."""

import pathlib
import threading

import dmuon_client as dmuon
import torch
import trainers
from dmuon_fixtures import PATIENCE_SECONDS, await_file
from trainers import HYPERS, bits, step_with_random_gradients

WORKERS, STEPS = 4, 12


def train(rank: int, world_size: int, addresses: list[str], job: str, folder: str | None) -> dict[str, object]:
    """After every third step this side says so, and waits for what is done meanwhile."""
    model = trainers.make_small(False, torch.float32)
    with dmuon.Muon(model, job=job, address=addresses[rank], reduced=False, verbose=False, **HYPERS) as opt:
        while opt.last_step < STEPS:
            step_with_random_gradients(rank, model, opt)
            if folder is not None and opt.last_step % 3 == 0 and opt.last_step < STEPS:
                pathlib.Path(folder, f"{opt.last_step}.{rank}").touch()
                await_file(pathlib.Path(folder, f"{opt.last_step}.done"))
        return {"params": {name: p.detach().clone().numpy() for name, p in model.named_parameters()}}


def test_a_node_is_drained_restarted_and_owns_again_while_a_job_trains(pools, two_nodes, job, tmp_path):
    pool, addresses = pools(WORKERS), two_nodes.addresses(WORKERS)
    calm = pool.run(train, addresses, f"{job}.calm", None)
    said: list[str] = []

    def operate() -> None:
        def after(step: int, *what) -> None:
            for rank in range(WORKERS):
                await_file(tmp_path / f"{step}.{rank}")
            for call in what:
                call()
            (tmp_path / f"{step}.done").touch()

        def drain(undo: bool) -> None:
            answer = two_nodes.drain("node-1", undo)
            said.append(answer.stdout + answer.stderr)
            assert answer.returncode == 0, answer.stderr

        after(3, lambda: drain(False), lambda: said.append(two_nodes.member("node-1")))
        after(6, two_nodes.nodes[1].kill, two_nodes.nodes[1].start)
        after(9, lambda: drain(True), lambda: said.append(two_nodes.member("node-1")))

    operator = threading.Thread(target=operate)
    operator.start()
    try:
        runs = pool.run(train, addresses, job, str(tmp_path))
    finally:
        operator.join(PATIENCE_SECONDS)
    assert all(bits(run["params"]) == bits(calm[0]["params"]) for run in runs)
    assert "node 'node-1' owns nothing" in said[0]
    assert (said[1]["drained"], int(said[1]["units"])) == (True, 0)
    assert "may own units again" in said[2]
    assert (said[3]["drained"], int(said[3]["units"]) > 0) == (False, True)


def test_an_unknown_node_is_an_error(two_nodes):
    answer = two_nodes.drain("nobody")
    assert answer.returncode == 1
    assert "no node 'nobody'" in answer.stderr
