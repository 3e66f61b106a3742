# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""A daemon is killed, and started again with nothing: trainers go on, and end with the bits of an undisturbed run."""

import pathlib
import threading
import warnings

import dmuon_client as dmuon
import pytest
import torch
import torch.distributed as dist
import trainers
from dmuon_client import DmuonError
from dmuon_fixtures import PATIENCE_SECONDS, await_file
from trainers import HYPERS, bits, step_with_random_gradients

WORKERS, STEPS, KILLED_AFTER = 4, 8, 4


def train(rank: int, world_size: int, addresses: list[str], job: str, replication: str, folder: str | None,
          **keywords: object) -> dict[str, object]:
    """Between two steps the
    daemon of the last node is killed: this side says when, and waits until it is there again."""
    model = trainers.make_small(False, torch.float32)
    with (dmuon.Muon(model, job=job, address=addresses[rank], replication=replication, reduced=False, verbose=False, **HYPERS,
                     **keywords) as opt, warnings.catch_warnings(record=True) as caught):
        warnings.simplefilter("always")
        killed = folder is None
        while opt.last_step < STEPS:
            step_with_random_gradients(rank, model, opt)
            if opt.last_step == KILLED_AFTER and not killed:
                killed = True
                dist.barrier()
                if rank == 0:
                    pathlib.Path(folder, "now").touch()
                await_file(pathlib.Path(folder, "back"))
        said = [str(w.message) for w in caught if issubclass(w.category, RuntimeWarning | UserWarning)]
        weights = {name: p.detach().clone().numpy() for name, p in model.named_parameters()}
    return {"params": weights, "said": said}


@pytest.mark.parametrize("keywords", [{}, {"sync": False}], ids=["step waits", "forward waits"])
@pytest.mark.parametrize("replication", ["sync", "async"])
def test_a_daemon_that_is_killed_costs_no_bit(pools, two_nodes, job, tmp_path, replication, keywords):
    pool, addresses = pools(WORKERS), two_nodes.addresses(WORKERS)
    calm = pool.run(train, addresses, f"{job}.calm", "none", None)

    def strike() -> None:
        await_file(tmp_path / "now")
        two_nodes.nodes[1].kill()
        two_nodes.nodes[1].start()
        (tmp_path / "back").touch()

    killer = threading.Thread(target=strike)
    killer.start()
    try:
        runs = pool.run(train, addresses, job, replication, str(tmp_path), **keywords)
    finally:
        killer.join(PATIENCE_SECONDS)
    assert all(bits(run["params"]) == bits(calm[0]["params"]) for run in runs)
    undone = [text for run in runs for text in run["said"] if "lost a node" in text]
    # The copies of the last step count when the next one has been called for; rank 0 says it.
    assert len(undone) == (1 if replication == "async" else 0)


def test_on_one_node_it_is_refused_by_name(daemon, job):
    model = torch.nn.ParameterDict({"w": torch.nn.Parameter(torch.ones(4, 6))})
    with pytest.raises(DmuonError, match="asks for replication"):
        dmuon.Muon(model, job=job, address=daemon.address, replication="sync", verbose=False)
    with pytest.raises(ValueError, match="replication"):
        dmuon.Muon(model, job=job, address=daemon.address, replication="twice", verbose=False)
