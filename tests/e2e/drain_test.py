# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""dmuonctl drain and undrain while a job trains: no bit changes, and a drained daemon may be started again."""

import dmuon_client as dmuon
import torch
import trainers
from stops import beside, stop
from trainers import HYPERS, bits, step_with_random_gradients

WORKERS, STEPS = 4, 12


def train(rank: int, world_size: int, addresses: list[str], job: str, folder: str | None) -> dict[str, object]:
    """After every third step this side says so, and waits for what is done meanwhile."""
    model = trainers.make_small(False, torch.float32)
    with dmuon.Muon(model, job=job, address=addresses[rank], reduced=False, verbose=False, **HYPERS) as opt:
        while opt.last_step < STEPS:
            step_with_random_gradients(rank, model, opt)
            if folder is not None and opt.last_step % 3 == 0 and opt.last_step < STEPS:
                stop(folder, opt.last_step, rank)
        return {"params": {name: p.detach().clone().numpy() for name, p in model.named_parameters()}}


def test_a_node_is_drained_restarted_and_owns_again_while_a_job_trains(pools, two_nodes, job, tmp_path):
    pool, addresses = pools(WORKERS), two_nodes.addresses(WORKERS)
    calm = pool.run(train, addresses, f"{job}.calm", None)
    said: list[str] = []

    def drain(undo: bool) -> None:
        answer = two_nodes.drain("node-1", undo)
        said.append(answer.stdout + answer.stderr)
        assert answer.returncode == 0, answer.stderr
        said.append(two_nodes.member("node-1"))

    calls = {3: [lambda: drain(False)], 6: [two_nodes.nodes[1].kill, two_nodes.nodes[1].start], 9: [lambda: drain(True)]}
    with beside(tmp_path, WORKERS, calls):
        runs = pool.run(train, addresses, job, str(tmp_path))
    assert all(bits(run["params"]) == bits(calm[0]["params"]) for run in runs)
    assert "node 'node-1' owns nothing" in said[0]
    assert (said[1]["drained"], int(said[1]["units"])) == (True, 0)
    assert "may own units again" in said[2]
    assert (said[3]["drained"], int(said[3]["units"]) > 0) == (False, True)


def test_an_unknown_node_is_an_error(two_nodes):
    answer = two_nodes.drain("nobody")
    assert answer.returncode == 1
    assert "no node 'nobody'" in answer.stderr
