# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""sync=False: a forward waits for the parameters of its own group only, and nobody ever sees an old one."""

import warnings

import dmuon_client as dmuon
import pytest
import torch
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
    if kind == "compiled":
        return small, {"overlap": list(small.blocks)}
    if kind == "ddp":
        return DistributedDataParallel(small), {"overlap": list(small.blocks)}
    if kind == "together":
        mesh = mesh_of(1)
        fully_shard([small.blocks[0], small.blocks[1]], mesh=mesh)
        return fully_shard(small, mesh=mesh), {}
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


def prefetch(model: Small) -> None:
    model.blocks[0].set_modules_to_forward_prefetch([model.blocks[1]])


def trained(rank, world_size, address, job, kind):
    """Parameters after a training with and without sync, what the forward after the first step waited for, and
    the order of registration."""
    found = []
    for sync in (True, False):
        model, keywords = make(kind)
        if kind == "early prefetch":
            prefetch(model)
        keywords = HYPERS | ({"sync": True} if sync else {"sync": False} | keywords)
        with dmuon.Muon(model, job=f"{job}.{sync}", address=address, verbose=False, **keywords) as opt:
            asked = Asked(opt)
            run = torch.compile(model, backend="eager") if kind == "compiled" else model
            if kind == "late prefetch":
                prefetch(model)
            for step in range(STEPS):
                if kind == "unshard":
                    for unit in units(model):
                        unit.unshard()
                opt.zero_grad()
                backward(run, tokens_of(step).chunk(world_size)[rank])
                if step == 1:
                    first = list(asked)
                opt.step()
            opt.wait()
            found.append(bits(whole_params(model)))
    return found, first, [name.removesuffix(".weight") for name in opt.routes()]


SHARDED = [["embedding", "head"], of_block(0), of_block(1)]


@pytest.mark.parametrize(("workers", "kind", "waits"), [
    (2, "zero3", SHARDED),
    (2, "zero2", SHARDED),
    (1, "zero3", SHARDED),
    (2, "nested", [["scale"], ["inner.embedding", "inner.head"],
                   *([f"inner.{name}" for name in of_block(i)] for i in (0, 1))]),
    (2, "together", [["embedding", "head"], of_block(0) + of_block(1)]),
    (2, "early prefetch", [["embedding", "head"], of_block(0) + of_block(1)]),
    (2, "late prefetch", [["embedding", "head"], of_block(0) + of_block(1)]),
    (2, "unshard", SHARDED),
    (2, "ddp", SHARDED),
    (1, "compiled", SHARDED),
    (1, "tied", [["embedding"], of_block(0), of_block(1)]),
])
def test_a_forward_waits_for_its_group_only_groups_come_in_forward_order_and_training_has_the_same_bits(
        pools, module_daemon, job, workers, kind, waits):
    for (sync, handed_over), first, order in pools(workers).run(trained, module_daemon.address, job, kind):
        assert sync == handed_over
        assert first == waits
        assert order == sum(waits, [])


def test_a_weight_that_another_module_uses_is_waited_for_by_the_first_forward(pools, module_daemon, job):
    (((sync, handed_over), first, _),) = pools(1).run(trained, module_daemon.address, job, "attention")
    assert sync == handed_over
    assert len(first) == 1


def without_private_state(rank, world_size, address, job):
    """What the first forward waits for where FSDP2 cannot be asked."""
    model, _ = make("zero3")
    states = [fully_shard.state(unit) for unit in units(model)]
    hidden = [state.__dict__.pop("_states_to_forward_prefetch") for state in states]
    with dmuon.Muon(model, job=job, address=address, verbose=False, sync=False, **HYPERS) as opt:
        for state, modules in zip(states, hidden, strict=True):
            state._states_to_forward_prefetch = modules
        asked = Asked(opt)
        backward(model, tokens_of(0).chunk(world_size)[rank])
        opt.step()
        model(tokens_of(1)[:, :-1])
        return asked == [list(map(lambda name: name.removesuffix(".weight"), opt.routes()))]


def test_where_fsdp_does_not_say_what_it_gathers_the_first_forward_waits_for_everything(pools, module_daemon, job):
    assert pools(2).run(without_private_state, module_daemon.address, job) == [True, True]


def stepped(address, job, **keywords):
    """A plain model whose blocks overlap, one step handed over, and the parameters before it."""
    model = make_small(False, torch.float32)
    opt = dmuon.Muon(model, job=job, address=address, verbose=False, sync=False, overlap=list(model.blocks),
                     **HYPERS, **keywords)
    before = bits(whole_params(model))
    backward(model, tokens_of(0))
    opt.step()
    return model, opt, before


def changed(model, before):
    """First parts of the names of what is new."""
    after = bits(whole_params(model))
    return sorted({".".join(n.split(".")[:2]) for n in after if after[n] != before[n]})


def one_by_one(rank, world_size, address, job):
    """What is new after each of a few forwards, and whether wait() left alone what had been delivered."""
    model, opt, before = stepped(address, job)
    Asked(opt)
    new = []
    for call in (lambda: model.head(torch.zeros(12)), lambda: model.blocks[1].up(torch.zeros(12)),
                 lambda: model.blocks[1](torch.zeros(12)), lambda: model.blocks[0](torch.zeros(12))):
        call()
        new.append(changed(model, before))
    with torch.no_grad():
        model.head.weight.zero_()
    opt.wait()
    untouched = not model.head.weight.any()
    opt.close()
    return new, untouched, opt.steps_done


def test_each_group_arrives_with_its_first_forward_and_only_once(pools, module_daemon, job):
    ((new, untouched, steps),) = pools(1).run(one_by_one, module_daemon.address, job)
    rest = ["embedding.weight", "head.weight"]
    assert new == [rest, ["blocks.1", *rest], ["blocks.1", *rest], ["blocks.0", "blocks.1", *rest]]
    assert untouched and steps == 1


def lost_and_found(rank, world_size, address, job):
    """What is new in the model after a forward that lost a peer, and after the next one."""
    model, opt, before = stepped(address, job)
    asked = Asked(opt)
    model.head(torch.zeros(12))
    asked.refuse = [dmuon.DmuonError(_abi.DMUON_PEER_LOST, "DMUON_PEER_LOST", "node-1 is gone")]
    with pytest.raises(dmuon.DmuonError, match="node-1 is gone"):
        model(tokens_of(1)[:, :-1])
    new = [changed(model, before)]
    model(tokens_of(1)[:, :-1])
    new.append(changed(model, before))
    opt.close()
    return new


def test_a_group_that_did_not_arrive_is_waited_for_again(pools, module_daemon, job):
    ((early, late),) = pools(1).run(lost_and_found, module_daemon.address, job)
    assert early == ["embedding.weight", "head.weight"]
    assert late == ["blocks.0", "blocks.1", "embedding.weight", "head.weight"]


def ended_half_way(rank, world_size, address, job):
    """Messages of forward and wait() after a step ended when a part of it was delivered; its repetition."""
    model, opt, before = stepped(address, job)
    asked = Asked(opt)
    model.head(torch.zeros(12))
    asked.refuse = [dmuon.DmuonError(_abi.DMUON_INTERNAL, "DMUON_INTERNAL", "broken")]
    messages = []
    for call in (lambda: model(tokens_of(1)[:, :-1]), lambda: model(tokens_of(1)[:, :-1]), opt.wait):
        with pytest.raises(RuntimeError) as caught:
            call()
        messages.append(str(caught.value))
    opt._session.wait(1)  # the service is only said to have ended it
    opt.step()
    step = opt.wait().step
    opt.close()
    return messages, step, changed(model, before)


def test_a_model_that_is_half_new_is_refused_until_the_step_is_repeated(pools, module_daemon, job):
    ((messages, step, new),) = pools(1).run(ended_half_way, module_daemon.address, job)
    assert messages == ["DMUON_INTERNAL: broken", *["step 1 ended when the model had a part of it: call step() again"] * 2]
    assert step == 1 and len(new) == 4


def refused_forward(rank, world_size, address, job):
    """The message that the forward after a refused step gets, and whether all goes on as if it had not been."""
    model, _ = make("zero3")
    rows = tokens_of(0).chunk(world_size)[rank]
    with dmuon.Muon(model, job=job, address=address, verbose=False, sync=False, **HYPERS) as opt:
        before = bits(whole_params(model))
        backward(model, rows)
        if rank == 1:
            model.blocks[1].up.weight.grad = None
        opt.step()
        with pytest.raises(dmuon.DmuonError) as caught:
            model(rows[:, :-1])
        opt.zero_grad()
        backward(model, rows)
        unchanged = bits(whole_params(model)) == before
        opt.step()
        model(rows[:, :-1])
        return str(caught.value), unchanged, opt.wait().step


def test_a_refused_step_is_told_to_the_forward_and_the_next_one_goes_on(pools, module_daemon, job):
    for message, unchanged, step in pools(2).run(refused_forward, module_daemon.address, job):
        assert "no gradient for tensor 'blocks.1.up.weight' from rank 1" in message
        assert unchanged and step == 1


def skipped(rank, world_size, address, job):
    """Whether the model is as it was after a skipped step's forward and wait(), and what they warn of."""
    model = make_small(False, torch.float32)
    with dmuon.Muon(model, job=job, address=address, verbose=False, sync=False, overlap=list(model.blocks),
                    **HYPERS) as opt, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        before = bits(whole_params(model))
        backward(model, tokens_of(0))
        model.head.weight.grad[0, 0] = float("nan")
        opt.step()
        model(tokens_of(1)[:, :-1])
        skipped = opt.wait().skipped
        return bits(whole_params(model)) == before, skipped, [str(w.message) for w in caught]


def test_a_skipped_step_leaves_the_model_alone_and_warns_once(pools, module_daemon, job):
    assert pools(1).run(skipped, module_daemon.address, job) == [
        (True, True, ["step 1 was skipped: a gradient was not finite"])]


def exposed(rank, world_size, address, job):
    """exposed_seconds after step(), the forward and wait(), and after a step with sync=True."""
    model, opt, _ = stepped(address, job)
    seconds = [opt.exposed_seconds]
    for call in (lambda: model(tokens_of(1)[:, :-1]), opt.wait, opt.step):
        call()
        seconds.append(opt.exposed_seconds)
    opt.close()
    model = make_small(False, torch.float32)
    with dmuon.Muon(model, job=f"{job}.sync", address=address, verbose=False, **HYPERS) as opt:
        backward(model, tokens_of(0))
        opt.step()
        return seconds, opt.exposed_seconds


def test_exposed_seconds_are_those_of_the_last_step(pools, module_daemon, job):
    ((handed_over, forward, waited, again), sync), = pools(1).run(exposed, module_daemon.address, job)
    assert handed_over == again == 0.0
    assert 0.0 < forward <= waited and sync > 0.0


def refusals(rank, world_size, address, job):
    messages = []
    for kind, keywords in (("zero3", {"sync": False}), ("plain", {}), ("plain", {"sync": False, "overlap": [nn.Linear(2, 2)]})):
        model = make_small(False, torch.float32) if kind == "plain" else make(kind)[0]
        with pytest.raises(ValueError) as caught:
            dmuon.Muon(model, job=job, address=address, verbose=False, **({"overlap": list(model.blocks)} | keywords))
        messages.append(str(caught.value))
    return messages


def test_overlap_that_cannot_be_right_is_refused(pools, module_daemon, job):
    ((fsdp, sync, foreign),) = pools(1).run(refusals, module_daemon.address, job)
    assert "without fully_shard" in fsdp
    assert "sync=False" in sync
    assert "overlap[0], a Linear, is not part of the model" in foreign
