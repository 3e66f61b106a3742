# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""sync=False: step() hands over and returns; whoever needs the new parameters waits for them."""

import dmuon_client as dmuon
import pytest
import torch
import trainers
from trainers import HYPERS, Bag, backward, bits, make_small, mesh_of, random_tensors, tokens_of, whole_params, wrap

STEPS = 10
SHAPES = {"w": (8, 6), "b": (5,)}


@pytest.mark.parametrize(("workers", "parallel"), [(1, "one"), (2, "zero3"), (2, "zero2"), (2, "ddp")])
def test_training_has_the_same_bits(pools, daemon, job, workers, parallel):
    runs = [pools(workers).run(trainers.train, daemon.address, f"{job}.{sync}", parallel=parallel, steps=STEPS,
                               hypers=HYPERS | {"sync": sync}, whole_history=sync)[0] for sync in (True, False)]
    assert bits(runs[0]["params"][-1]) == bits(runs[1]["params"][-1])


def test_training_over_two_nodes_has_the_same_bits(pools, two_nodes, job):
    runs = [pools(2).run(trainers.train, two_nodes.addresses(2), f"{job}.{sync}", parallel="zero3", steps=STEPS,
                         hypers=HYPERS | {"sync": sync}, whole_history=sync)[0] for sync in (True, False)]
    assert bits(runs[0]["params"][-1]) == bits(runs[1]["params"][-1])


def readers(rank, world_size, address, job, parallel):
    """Whether step() returned early, and whether a reader right after it saw all the new parameters."""
    model = wrap(make_small(False, torch.float32), parallel, mesh_of(1) if parallel == "zero3" else None)
    inner = getattr(model, "module", model)
    found = {}
    with dmuon.Muon(model, job=job, address=address, verbose=False, sync=False, **HYPERS) as opt:
        read = {"forward": lambda: model(tokens_of(1)[:, :-1]), "state_dict": model.state_dict,
                "part": lambda: inner.blocks[0].norm(torch.zeros(12)), "optimizer": opt.state_dict, "wait": opt.wait}
        if parallel == "zero3":
            del read["part"]  # cannot be called by itself
        for reader, call in read.items():
            before, done = bits(whole_params(model)), opt.steps_done
            backward(model, tokens_of(0).chunk(world_size)[rank])
            opt.step()
            early = opt.steps_done == done
            call()
            seen = bits(whole_params(model))
            opt.wait()
            found[reader] = (early, seen != before, seen == bits(whole_params(model)))
            opt.zero_grad()
    return found


@pytest.mark.parametrize(("workers", "parallel"), [(1, "one"), (2, "zero3"), (2, "ddp")])
def test_every_reader_waits_and_sees_the_whole_step(pools, daemon, job, workers, parallel):
    for found in pools(workers).run(readers, daemon.address, job, parallel):
        assert set(found.values()) == {(True, True, True)}, found


def reused(rank, world_size, address, job, reuse):
    """Parameters after steps whose gradients are overwritten as soon as step() has returned."""
    bag = Bag(random_tensors(SHAPES, 0), "rows")
    with dmuon.Muon(bag, job=job, address=address, verbose=False, sync=False, **HYPERS) as opt:
        for step in range(1, 4):
            bag.feed(random_tensors(SHAPES, step))
            opt.step()
            if reuse:
                for param in bag.parameters():
                    param.grad.to_local().fill_(float("nan"))
        opt.wait()
        return bits(whole_params(bag))


def test_a_gradient_may_be_overwritten_as_soon_as_step_returns(pools, daemon, job):
    # cases row 32
    kept, overwritten = (pools(2).run(reused, daemon.address, f"{job}.{reuse}", reuse)[0] for reuse in (False, True))
    assert kept == overwritten


def late_error(rank, world_size, address, job):
    """The message that the next reader gets of a step that was refused, and the step that works after it."""
    bag = Bag(random_tensors(SHAPES, 0), "rows")
    with dmuon.Muon(bag, job=job, address=address, verbose=False, sync=False, **HYPERS) as opt:
        bag.feed({"w": None if rank == 1 else random_tensors(SHAPES, 1)["w"], "b": random_tensors(SHAPES, 1)["b"]})
        opt.step()
        try:
            bag.state_dict()
            message = "no error"
        except dmuon.DmuonError as error:
            message = str(error)
        bag.feed(random_tensors(SHAPES, 1))
        opt.step()
        return message, opt.wait().step


def test_a_refused_step_is_told_to_the_next_reader_and_may_be_taken_again(pools, daemon, job):
    for message, step in pools(2).run(late_error, daemon.address, job):
        assert "no gradient for tensor 'w' from rank 1" in message
        assert step == 1


def close_at_once(rank, world_size, address, job):
    bag = Bag(random_tensors(SHAPES, 0), "rows")
    before = whole_params(bag)
    with dmuon.Muon(bag, job=job, address=address, verbose=False, sync=False, **HYPERS) as opt:
        bag.feed(random_tensors(SHAPES, 1))
        opt.step()
    return bits(before) != bits(whole_params(bag))


def test_closing_waits_for_the_last_step(pools, daemon, job):
    assert pools(2).run(close_at_once, daemon.address, job) == [True, True]
