# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""Tensors that hold several matrices, or are one in another shape: stacks of experts, fused attention, kernels."""

import copy
import math

import dmuon_client as dmuon
import numpy as np
import pytest
import torch
import torch.nn.functional as F
import trainers
from plain_muon import PlainPair
from torch import nn
from torch.distributed.fsdp import fully_shard
from trainers import HYPERS, Bag, bits, difference, feed, random_tensors, whole_params

FP32 = 1e-5
Q, KV, HEAD, WIDTH = 4, 2, 3, 12  # of the model's attention
EXPERTS, HIDDEN = 3, 5


class Mixture(nn.Module):
    """Attention whose projection is stored group by group, a convolution, and experts in two stacks, the first with
    gate and up row by row. In every second step the last expert has no tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, (Q + 2 * KV) * HEAD, bias=False)
        self.mix = nn.Conv1d(WIDTH, WIDTH, 3, padding=1, bias=False)
        self.gate_up = nn.Parameter(torch.randn(EXPERTS, 2 * HIDDEN, WIDTH) / 4)
        self.down = nn.Parameter(torch.randn(EXPERTS, WIDTH, HIDDEN) / 4)

    def forward(self, x: torch.Tensor, step: int) -> torch.Tensor:
        rows, length, _ = x.shape
        x = self.norm(x)
        heads = self.qkv(x).view(rows, length, KV, Q // KV + 2, HEAD).permute(2, 3, 0, 1, 4)
        keys, values = heads[:, Q // KV].unsqueeze(1), heads[:, Q // KV + 1].unsqueeze(1)
        y = F.scaled_dot_product_attention(heads[:, :Q // KV], keys, values).permute(2, 3, 0, 1, 4)
        x = x + self.mix((x + y.reshape(rows, length, WIDTH)).transpose(1, 2)).transpose(1, 2)
        for expert, tokens in enumerate(x.chunk(EXPERTS - step % 2, dim=1)):
            hidden = tokens @ self.gate_up[expert].T
            x = x + F.pad((F.silu(hidden[..., 0::2]) * hidden[..., 1::2]) @ self.down[expert].T,
                          (0, 0, 0, length - tokens.shape[1]))
        return x


RULES = [dmuon.Rule("muon", name="qkv.weight", view=dmuon.QKV(Q, KV, HEAD, layout="interleaved")),
         dmuon.Rule("muon", name="gate_up", view=dmuon.Experts(dmuon.GateUp(layout="interleaved"))),
         dmuon.Rule("muon", name="down", view="experts")]
MATRICES = 3 + 1 + 2 * EXPERTS + EXPERTS


def parts_of(name: str, t: torch.Tensor) -> list[torch.Tensor]:
    """Views of `t`, one a matrix, by slicing instead of by blocks."""
    if name == "qkv.weight":
        groups = t.view(KV, Q // KV + 2, HEAD, WIDTH)
        return [groups[:, :Q // KV], groups[:, Q // KV], groups[:, Q // KV + 1]]
    if name == "gate_up":
        return [rows for expert in t for rows in (expert[0::2], expert[1::2])]
    return list(t) if name == "down" else [t]


def as_matrix(name: str, part: torch.Tensor) -> torch.Tensor:
    return part if name.startswith(("mix", "norm")) else part.reshape(-1, part.shape[-1])


class PlainParts:
    """PlainPair over the model's matrices, each a parameter of its own."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._parts = Bag({f"{name.replace('.', '_')}_{i}": as_matrix(name, part)
                           for name, p in model.named_parameters() for i, part in enumerate(parts_of(name, p.detach()))},
                          "plain")
        self._pair = PlainPair(self._parts, lambda n: not n.startswith("norm"), **HYPERS)

    @torch.no_grad()
    def step(self) -> None:
        for p, (name, _, grad) in zip(self._parts.parameters(), self._sliced(), strict=True):
            p.grad = as_matrix(name, grad).clone()
        self._pair.step()
        for p, (_, part, _) in zip(self._parts.parameters(), self._sliced(), strict=True):
            part.copy_(p.view(part.shape))

    def _sliced(self):
        return [(name, part, grad) for name, p in self._model.named_parameters()
                for part, grad in zip(parts_of(name, p.detach()), parts_of(name, p.grad), strict=True)]


def made() -> Mixture:
    torch.manual_seed(3)
    return Mixture()


def backward(model: nn.Module, step: int, part: int, parts: int) -> None:
    model.zero_grad()
    x = torch.randn(4, 6, WIDTH, generator=torch.Generator().manual_seed(step)).chunk(parts)[part]
    model(x, step).square().mean().backward()


def train(rank, world_size, address, job, steps):
    model = made()
    fully_shard(model)
    model.set_force_sum_reduction_for_comms(True)
    history = []
    with dmuon.Muon(model, job=job, address=address, verbose=False, rules=RULES, **HYPERS) as opt:
        for step in range(1, steps + 1):
            backward(model, step, rank, world_size)
            opt.step()
            history.append(whole_params(model))
        return history, opt.result.newton_schulz_calls, opt.plan.matrix_units


def test_fsdp_trains_experts_and_interleaved_attention_as_plain_pytorch_does_matrix_by_matrix(pools, module_daemon, job):
    steps = 6
    runs = pools(2).run(train, module_daemon.address, job, steps)
    model = made()
    plain = PlainParts(model)
    for step in range(1, steps + 1):
        backward(model, step, 0, 1)
        plain.step()
        for history, _, _ in runs:
            assert difference(history[step - 1], whole_params(model)) <= FP32, step
    assert all((calls, units) == (MATRICES * steps, MATRICES) for _, calls, units in runs)
    assert bits(runs[0][0][-1]) == bits(runs[1][0][-1])


def test_views_of_a_tensor_do_not_depend_on_its_sharding(pools, module_daemon, job):
    # cases row 55
    shapes = {"qkv": (24, 6), "gate_up": (3, 8, 6), "halves": (10, 6), "kernel": (6, 4, 3)}
    rules = [dmuon.Rule("muon", name="qkv", view=dmuon.QKV(4, 2, 3, layout="interleaved")),
             dmuon.Rule("muon", name="gate_up", view=dmuon.Experts(dmuon.GateUp(layout="interleaved"))),
             dmuon.Rule("muon", name="halves", view=dmuon.GateUp()), dmuon.Rule("muon", view="flatten")]
    last = [pools(workers).run(feed, module_daemon.address, f"{job}.{workers}.{layout}", shapes, layout=layout,
                               keywords=dict(HYPERS, rules=rules))[0]["params"][-1]
            for workers, layout in ((1, "rows"), (2, "rows"), (4, "rows"), (4, "columns"), (2, "replicate"))]
    assert all(bits(params) == bits(last[0]) for params in last)


def sections(rows: torch.Tensor) -> torch.Tensor:
    """Group by group -> all of q, all of k, all of v: 8 query heads, 2 of keys and values, 16 rows each."""
    groups = rows.view(2, 6, 16, -1)
    return torch.cat([groups[:, :4].flatten(0, 2), groups[:, 4].flatten(0, 1), groups[:, 5].flatten(0, 1)])


def attention(rank, world_size, address, job, layout, per_head):
    """Parameters of a fused projection after each step, in sections."""
    store = sections if layout == "stacked" else torch.clone
    shapes, history = {"qkv": (192, 20)}, []
    bag = Bag({"qkv": store(random_tensors(shapes, 0)["qkv"])}, "rows")
    rules = [dmuon.Rule("muon", view=dmuon.QKV(8, 2, 16, layout=layout, per_head=per_head))]
    with dmuon.Muon(bag, job=job, address=address, verbose=False, rules=rules, **HYPERS) as opt:
        for step in range(1, 4):
            bag.feed({"qkv": store(random_tensors(shapes, step)["qkv"])})
            opt.step()
            whole = torch.from_numpy(whole_params(bag)["qkv"])
            history.append((whole if layout == "stacked" else sections(whole)).numpy().tobytes())
        return history, opt.result.newton_schulz_calls


@pytest.mark.parametrize("per_head", [False, True])
def test_attention_moves_alike_stored_in_sections_or_interleaved(pools, module_daemon, job, per_head):
    # cases row 59
    runs = {layout: pools(2).run(attention, module_daemon.address, f"{job}.{layout}", layout, per_head)
            for layout in ("stacked", "interleaved")}
    matrices = 12 if per_head else 3
    assert runs["stacked"][0] == runs["interleaved"][0] == runs["interleaved"][1]
    assert runs["stacked"][0][1] == 3 * matrices


@pytest.mark.parametrize(("shape", "scale", "factor"), [
    ((256, 16, 3, 3), "original", 4 / 3),  # cases row 50: sqrt(256 / 144)
    ((64, 32, 3, 3), "match_rms_adamw", 0.2 * math.sqrt(288)),  # cases row 51: 3.394
])
def test_scale_of_a_kernel_is_of_its_flattened_shape(pools, module_daemon, job, shape, scale, factor):
    def moved(rule):
        keywords = {"lr": 1.0, "scale": rule, "rules": [dmuon.Rule("muon", view="flatten")]}
        before, after = pools(2).run(feed, module_daemon.address, f"{job}.{rule}", {"kernel": shape}, steps=1,
                                     keywords=keywords)[0]["params"]
        return float(np.linalg.norm(before["kernel"] - after["kernel"]))

    assert moved(scale) / moved("none") == pytest.approx(factor, rel=1e-4)


CONVOLUTIONS = {1: (nn.Conv1d, None), 2: (nn.Conv2d, torch.channels_last), 3: (nn.Conv3d, torch.channels_last_3d)}


def convolved(rank, world_size, address, job, dims):
    """Two steps of a kernel whose gradient lies channels last, and of the contiguous one in plain PyTorch."""
    make, layout = CONVOLUTIONS[dims]
    torch.manual_seed(dims)
    plain = make(4, 8, 3, bias=False)
    model = copy.deepcopy(plain).to(memory_format=layout) if layout else copy.deepcopy(plain)
    pair = PlainPair(plain, lambda name: True, **HYPERS)
    strided = []
    with dmuon.Muon(model, job=job, address=address, verbose=False, **HYPERS) as opt:
        for step in range(2):
            x = torch.randn(2, 4, *(5,) * dims, generator=torch.Generator().manual_seed(step))
            for module, each, optimizer in ((model, x.to(memory_format=layout) if layout else x, opt), (plain, x, pair)):
                module.zero_grad()
                module(each).square().sum().backward()
                if module is model:
                    strided.append(not module.weight.grad.is_contiguous())
                optimizer.step()
        return whole_params(model), whole_params(plain), all(strided), opt.routes()


@pytest.mark.parametrize("dims", CONVOLUTIONS)
def test_convolutions_are_flattened_whatever_their_memory_format(pools, module_daemon, job, dims):
    # cases row 60
    served, plain, strided, routes = pools(1).run(convolved, module_daemon.address, job, dims)[0]
    assert difference(served, plain) <= FP32
    assert strided == (CONVOLUTIONS[dims][1] is not None)
    assert routes == {"weight": "muon"}


def refusal(rank, world_size, address, job, view):
    try:
        dmuon.Muon(Bag({"qkvg": torch.zeros(4608, 4)}, "rows"), job=job, address=address, verbose=False,
                   rules=[dmuon.Rule("muon", view=view)]).close()
    except ValueError as error:
        return str(error)
    return "accepted"


def test_a_split_that_forgets_a_block_is_refused_on_every_rank(pools, module_daemon, job):
    # cases row 54: gated attention has 2048 rows more than q, k and v
    for message in pools(2).run(refusal, module_daemon.address, job, dmuon.QKV(8, 1, 256)):
        assert "qkvg (4608, 4)" in message and "sum to 2560 rows of 4608" in message


def test_single_rows_and_columns_are_normalised_in_a_stack_too(pools, module_daemon, job):
    # cases row 61
    shapes = {"rows": (3, 1, 64), "columns": (3, 64, 1)}
    keywords = {"lr": 1.0, "rules": [dmuon.Rule("muon", view="experts")]}
    runs = pools(2).run(feed, module_daemon.address, job, shapes, steps=1, keywords=keywords)
    grads = trainers.random_tensors(shapes, 1)
    for name, scale in (("rows", 1.0), ("columns", 8.0)):
        before, after = (params[name] for params in runs[0]["params"])
        for update, grad in zip((before - after).reshape(3, -1), grads[name].numpy().reshape(3, -1), strict=True):
            size = float(np.linalg.norm(update))
            assert 0.65 <= size / scale <= 1.2
            assert float(update @ grad) == pytest.approx(size * float(np.linalg.norm(grad)), rel=1e-5)
