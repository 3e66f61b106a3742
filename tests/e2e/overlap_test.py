# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""sync=False: a forward waits for the parameters of its own group only, and nobody ever sees an old one."""

import warnings

import dmuon_client as dmuon
import pytest
import torch
import trainers
from dmuon_client import _abi
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel
from trainers import HYPERS, Small, backward, bits, make_small, mesh_of, tokens_of, whole_params, wrap

STEPS = 5


class Attention(nn.Module):
    """Of `attention.out_proj` the weight is used, but never the forward."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(17, 12)
        self.attention = nn.MultiheadAttention(12, 2, batch_first=True)
        self.head = nn.Linear(12, 17)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        return self.head(x + self.attention(x, x, x, need_weights=False)[0])


class Nested(nn.Module):
    """Small, whose blocks lie in a group that has a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = make_small(False, torch.float32)
        self.scale = nn.Parameter(torch.ones(17))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.inner(tokens) * self.scale


def make(kind: str) -> tuple[nn.Module, dict]:
    """A model of a `kind`, and the keywords that its optimizer needs beside sync=False."""
    torch.manual_seed(7)
    if kind == "attention":
        return Attention(), {}
    if kind == "nested":
        model = Nested()
        wrap(model.inner, "zero3")
        return fully_shard(model, mesh=mesh_of(1)), {}
    small = make_small(kind == "tied", torch.float32)
    if kind == "tied":
        return small, {"overlap": [small.embedding, *small.blocks, small.head]}
    if kind == "ddp":
        return DistributedDataParallel(small), {"overlap": list(small.blocks)}
    if kind == "together":
        mesh = mesh_of(1)
        fully_shard([small.blocks[0], small.blocks[1]], mesh=mesh)
        return fully_shard(small, mesh=mesh), {}
    if kind == "prefetch":
        wrap(small, "zero3")
        small.blocks[0].set_modules_to_forward_prefetch([small.blocks[1]])
        return small, {}
    return wrap(small, "zero2" if kind == "zero2" else "zero3"), {}


def units(model: nn.Module) -> list[FSDPModule]:
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


class Asked(list):
    """What each wait of an optimizer's forwards was for: names without ".weight". The answer to the step is
    held back, as if parameters were still on their way to others; `refuse` is what the next waits raise."""

    def __init__(self, opt: dmuon.Muon) -> None:
        super().__init__()
        self.refuse: list[dmuon.DmuonError] = []
        names, wait_params = [name.removesuffix(".weight") for name in opt.routes()], opt._session.wait_params

        def asked(tensors, step):
            self.append([names[i] for i in tensors])
            if self.refuse:
                raise self.refuse.pop(0)
            wait_params(tensors, step)

        opt._session.wait_params = asked
        opt._session.poll = lambda step: None


def of_block(i: int) -> list[str]:
    return [f"blocks.{i}.{name}" for name in ("norm", "norm.bias", "up", "up.bias", "down", "narrow", "wide")]


def trained(rank, world_size, address, job, kind):
    """Parameters after a training with and without sync, and what the first step's forward waited for."""
    found = []
    for sync in (True, False):
        model, keywords = make(kind)
        keywords = HYPERS | ({"sync": True} if sync else {"sync": False} | keywords)
        with dmuon.Muon(model, job=f"{job}.{sync}", address=address, verbose=False, **keywords) as opt:
            asked = Asked(opt)
            for step in range(STEPS):
                if kind == "unshard":
                    for unit in units(model):
                        unit.unshard()
                opt.zero_grad()
                backward(model, tokens_of(step).chunk(world_size)[rank])
                if step == 1:
                    first = list(asked)
                opt.step()
            opt.wait()
            found.append(bits(whole_params(model)))
    return found, first


SHARDED = [["embedding", "head"], of_block(0), of_block(1)]


@pytest.mark.parametrize(("workers", "kind", "waits"), [
    (2, "zero3", SHARDED),
    (2, "zero2", SHARDED),
    (1, "zero3", SHARDED),
    (2, "nested", [["scale"], ["inner.embedding", "inner.head"],
                   *([f"inner.{name}" for name in of_block(i)] for i in (0, 1))]),
    (2, "together", [["embedding", "head"], of_block(0) + of_block(1)]),
    (2, "prefetch", [["embedding", "head"], of_block(0) + of_block(1)]),
    (2, "unshard", SHARDED),
    (2, "ddp", SHARDED),
    (1, "tied", [["embedding"], of_block(0), of_block(1)]),
])
def test_a_forward_waits_for_its_group_only_and_training_has_the_same_bits(pools, daemon, job, workers, kind, waits):
    for (sync, handed_over), first in pools(workers).run(trained, daemon.address, job, kind):
        assert sync == handed_over
        assert first == waits


def test_a_weight_that_another_module_uses_is_waited_for_by_the_first_forward(pools, daemon, job):
    (((sync, handed_over), first),) = pools(1).run(trained, daemon.address, job, "attention")
    assert sync == handed_over
    assert len(first) == 1
