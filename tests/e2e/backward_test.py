# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""backward_passes_per_step: gradients are handed over during backward, and nothing else changes."""

import collections
import time
import urllib.request
from collections.abc import Iterable

import dmuon_client as dmuon
import pytest
import torch
import trainers
from dmuon_client.session import Session
from torch import nn
from torch.distributed.tensor import DTensor
from trainers import HYPERS, bits, make_small, tokens_of

STEPS = 10


def trained(rank, world_size, address, job, keywords, passes=None, **options):
    """trainers.train, and how many tensors were handed over in each step's backward."""
    handed, of_step, submit = [], collections.defaultdict(set), Session.submit

    def counted(self, tensors, step):
        of_step[step].update(tensors)
        submit(self, tensors, step)

    def before_step(done):
        handed.append(len(of_step[done + 1]))

    Session.submit = counted
    try:
        run = trainers.train(rank, world_size, address, job, steps=STEPS, before_step=before_step,
                             hypers=HYPERS | options | {"backward_passes_per_step": passes}, **keywords)
    finally:
        Session.submit = submit
    return run["params"], handed, len(run["routes"])


def same_bits(runs: Iterable, others: Iterable) -> bool:
    return all(list(map(bits, a[0])) == list(map(bits, b[0])) for a, b in zip(runs, others, strict=True))


@pytest.mark.parametrize(("workers", "parallel", "replicas"), [
    (1, "one", 1), (2, "zero2", 1), (4, "zero3", 1), (4, "zero3", 2), (4, "shards", 2), (4, "plain", 1), (4, "owned", 1)])
def test_training_has_the_same_bits(pools, two_nodes, job, workers, parallel, replicas):
    keywords = {"parallel": parallel, "replicas": replicas}
    addresses = two_nodes.addresses(workers)
    plain = pools(workers).run(trained, addresses, f"{job}.step", keywords)
    early = pools(workers).run(trained, addresses, f"{job}.backward", keywords, 1)
    assert same_bits(plain, early)
    for _, handed, _ in plain:
        assert handed == [0] * STEPS
    for _, handed, tensors in early:
        assert handed == [handed[0]] * STEPS and handed[0] > tensors / 2  # a worker has no rows of some
    assert any(handed == [tensors] * STEPS for _, handed, tensors in early)


def test_bf16_gradients_have_the_same_bits(pools, two_nodes, job):
    keywords = {"parallel": "zero3", "dtype": torch.bfloat16}
    plain, early = (pools(2).run(trained, two_nodes.addresses(2), f"{job}.{passes}", keywords, passes) for passes in (None, 1))
    assert same_bits(plain, early)
    assert all(handed == [tensors] * STEPS for _, handed, tensors in early)


def test_handing_over_both_ways_has_the_same_bits(pools, two_nodes, job):
    runs = [pools(2).run(trained, two_nodes.addresses(2), f"{job}.{sync}", {"parallel": "zero3", "whole_history": sync},
                         1, sync=sync)[0] for sync in (True, False)]
    assert bits(runs[0][0][-1]) == bits(runs[1][0][-1])


@pytest.mark.parametrize("parallel", ["zero3", "owned"])
def test_only_the_last_of_several_passes_hands_over(pools, two_nodes, job, parallel):
    keywords = {"parallel": parallel, "micro_batches": 3}
    plain = pools(2).run(trained, two_nodes.addresses(2), f"{job}.step", keywords)
    early = pools(2).run(trained, two_nodes.addresses(2), f"{job}.backward", keywords, 3)
    assert same_bits(plain, early)
    assert all(handed == [tensors] * STEPS for _, handed, tensors in early)


@pytest.mark.parametrize("said", [1, 4])
def test_another_number_of_passes_than_was_said_costs_nothing_but_time(pools, two_nodes, job, said):
    keywords = {"parallel": "zero3", "micro_batches": 3}
    plain = pools(2).run(trained, two_nodes.addresses(2), f"{job}.step", keywords)
    early = pools(2).run(trained, two_nodes.addresses(2), f"{job}.backward", keywords, said)
    assert same_bits(plain, early)
    assert all((max(handed) > 0) == (said < 3) for _, handed, _ in early)


def changed(rank, world_size, address, job, parallel, passes, how):
    """Parameters after steps before which gradients were changed, and whether any was handed over again."""
    model = trainers.wrap(make_small(False, torch.float32), parallel)
    keywords = HYPERS | {"backward_passes_per_step": passes}
    if parallel == "owned":
        keywords["reduced"] = False
    with dmuon.Muon(model, job=job, address=address[rank], verbose=False, **keywords) as opt:
        for step in range(STEPS):
            trainers.backward(model, tokens_of(step).chunk(world_size)[rank])
            if how == "clipped":
                torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if isinstance(p, DTensor)], 0.1)
            elif how == "replaced":
                for param in model.parameters():
                    param.grad = param.grad * 0.5
            elif how == "computed again":
                opt.zero_grad()
                trainers.backward(model, tokens_of(step + 1).chunk(world_size)[rank])
            opt.step()
            opt.zero_grad()
        return bits(trainers.whole_params(model))


@pytest.mark.parametrize("how", ["clipped", "replaced", "computed again"])
@pytest.mark.parametrize("parallel", ["zero3", "owned"])
def test_what_happens_to_gradients_before_step_counts(pools, two_nodes, job, parallel, how):
    addresses = two_nodes.addresses(2)
    plain = pools(2).run(changed, addresses, f"{job}.step", parallel, None, how)
    early = pools(2).run(changed, addresses, f"{job}.backward", parallel, 1, how)
    untouched = pools(2).run(changed, addresses, f"{job}.untouched", parallel, 1, "")
    assert plain == early
    assert plain != untouched


def without_a_gradient(rank, world_size, address, job):
    model = make_small(False, torch.float32)
    with dmuon.Muon(model, job=job, address=address, verbose=False, backward_passes_per_step=1, **HYPERS) as opt:
        before = bits(trainers.whole_params(model))
        trainers.backward(model, tokens_of(0))
        kept, model.blocks[1].up.weight.grad = model.blocks[1].up.weight.grad, None
        with pytest.raises(dmuon.DmuonError, match="MISSING_GRADIENT.*blocks.1.up.weight"):
            opt.step()
        unchanged = bits(trainers.whole_params(model)) == before
        model.blocks[1].up.weight.grad = kept
        opt.step()
        return unchanged, opt.last_step


def test_a_gradient_that_is_gone_by_step_is_missing(pools, daemon, job):
    assert pools(1).run(without_a_gradient, daemon.address, job) == [(True, 1)]


def ahead(rank, world_size, address, metrics, job):
    """Large layers, whose gradients come one after the other; how many buckets of them did not wait for step()."""
    torch.manual_seed(rank)
    model = nn.Sequential(*(nn.Linear(520, 520, bias=False) for _ in range(4)))
    for layer in model:
        layer.register_full_backward_hook(lambda *_: time.sleep(0.02))
    with dmuon.Muon(model, job=job, address=address[rank], verbose=False, backward_passes_per_step=1, reduced=False,
                    iterations=1) as opt:
        for _ in range(3):
            model(torch.randn(4, 520)).square().mean().backward()
            opt.step()
            opt.zero_grad()
        with urllib.request.urlopen(f"http://{metrics[rank]}/metrics") as page:
            lines = page.read().decode().splitlines()
        series = f'dmuon_gradient_buckets_total{{job_id="{job}",when="backward"}}'
        return sum(float(line.split()[-1]) for line in lines if line.startswith(series))


def test_the_service_works_while_backward_runs(pools, two_nodes, job):
    metrics = [node.status()["node"]["metrics_address"] for node in two_nodes.nodes]
    assert min(pools(2).run(ahead, two_nodes.addresses(2), metrics, job)) > 0


def closed(rank, world_size, address, job):
    model = make_small(False, torch.float32)
    opt = dmuon.Muon(model, job=job, address=address, verbose=False, backward_passes_per_step=1, **HYPERS)
    opt.close()
    trainers.backward(model, tokens_of(0))
    return all(param.grad is not None for param in model.parameters())


def test_a_closed_optimizer_leaves_backward_alone(pools, daemon, job):
    assert pools(1).run(closed, daemon.address, job) == [True]


def refusals(rank, world_size, address, job):
    messages = []
    for parallel, keywords in (("ddp", {}), ("plain", {"reduced": True}), ("zero3", {"backward_passes_per_step": 0}),
                               ("zero3", {"backward_passes_per_step": 1.5})):
        model = trainers.wrap(make_small(False, torch.float32), parallel)
        with pytest.raises(ValueError) as caught:
            dmuon.Muon(model, job=job, address=address, verbose=False, **({"backward_passes_per_step": 1} | keywords))
        messages.append(str(caught.value))
    return messages


def test_gradients_that_others_reduce_later_are_refused(pools, daemon, job):
    ddp, plain, none, half = pools(2).run(refusals, daemon.address, job)[0]
    assert "DistributedDataParallel" in ddp and "embed" in ddp
    assert "reduced=True" in plain
    assert "backward_passes_per_step is 0" in none and "whole number" in half
