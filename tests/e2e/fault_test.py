# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""What is wrong on one rank ends the step on all ranks, by a message that names it, and changes
nothing; the job goes on afterwards."""

import math
import warnings

import dmuon_client as dmuon
import pytest
import torch
import torch.distributed as dist
import trainers
from torch.distributed.fsdp import FullyShardedDataParallel
from trainers import HYPERS, Bag, bits, difference, random_tensors, whole_params

SHAPES = {"first": (8, 6), "second": (5, 6), "bias": (7,)}
FP32 = 1e-5


def disturbed(rank, world_size, address, job, *, layout, disturb, keywords=HYPERS):
    """Three steps; before the second one, an attempt at it with `disturb`ed gradients."""
    bag = Bag(random_tensors(SHAPES, 0), layout)
    seen = {}
    with dmuon.Muon(bag, job=job, address=address, verbose=False, **keywords) as opt:
        for step in (1, 2, 3):
            if step == 2:
                before = whole_params(bag)
                bag.feed(disturb(random_tensors(SHAPES, step), rank, bag))
                try:
                    with warnings.catch_warnings(record=True) as caught:
                        warnings.simplefilter("always")
                        opt.step()
                    seen.update(result=opt.result, warned=[str(w.message) for w in caught])
                except (dmuon.DmuonError, TypeError) as error:
                    seen.update(error=str(error), kind=type(error).__name__)
                seen.update(unchanged=bits(before) == bits(whole_params(bag)), step=opt.last_step)
                seen["after"] = whole_params(bag)
                if "result" in seen:
                    continue
            bag.feed(random_tensors(SHAPES, step))
            opt.step()
        return seen | {"params": whole_params(bag), "calls": opt.result.newton_schulz_calls}


def without_second_on_rank_1(grads, rank, bag):
    return grads | {"second": None} if rank == 1 else grads


def test_missing_gradient_is_named_on_all_ranks_and_the_step_can_be_repeated(pools, daemon, job):
    # cases rows 63 and 64
    runs = pools(2).run(disturbed, daemon.address, job, layout="rows", disturb=without_second_on_rank_1)
    reference = trainers.feed_plain(SHAPES, is_muon=lambda n: n != "bias")
    for run in runs:
        assert run["error"].startswith("DMUON_MISSING_GRADIENT") and "second" in run["error"]
        assert run["unchanged"] and run["step"] == 1
        assert difference(run["params"], reference[-1]) <= FP32
        assert run["calls"] == 3 * 2


def without_second(grads, rank, bag):
    return grads | {"second": None}


def test_skip_policy_leaves_the_tensor_alone(pools, daemon, job):
    runs = pools(2).run(disturbed, daemon.address, job, layout="rows", disturb=without_second,
                        keywords=dict(HYPERS, missing_gradient="skip"))
    one, two = (trainers.feed_plain(SHAPES, steps=n, is_muon=lambda n: n != "bias")[-1] for n in (1, 2))
    for run in runs:
        assert difference({"s": run["after"]["second"]}, {"s": one["second"]}) <= FP32
        assert difference({"f": run["after"]["first"]}, {"f": two["first"]}) <= FP32
        assert run["calls"] == 2 + 1 + 2


def zero_second(step):
    grads = random_tensors(SHAPES, step)
    return grads | {"second": torch.zeros(SHAPES["second"])} if step == 2 else grads


def test_zero_policy_counts_zeros(pools, daemon, job):
    # cases row 63
    runs = pools(2).run(disturbed, daemon.address, job, layout="rows", disturb=without_second,
                        keywords=dict(HYPERS, missing_gradient="zero"))
    reference = trainers.feed_plain(SHAPES, is_muon=lambda n: n != "bias", grads=zero_second)
    assert difference(runs[1]["params"], reference[-1]) <= FP32


def nan_on_rank_1(grads, rank, bag):
    if rank == 1:
        grads["second"][4, 0] = math.nan  # a row of rank 1 in either layout
    return grads


@pytest.mark.parametrize(("layout", "reduced"), [("rows", None), ("plain", False)])
def test_one_nan_skips_the_step_on_all_ranks(pools, daemon, job, layout, reduced):
    # cases row 66
    runs = pools(2).run(disturbed, daemon.address, job, layout=layout, disturb=nan_on_rank_1,
                        keywords=dict(HYPERS, reduced=reduced))
    for run in runs:
        assert run["result"].skipped and math.isnan(run["result"].grad_norm)
        assert run["unchanged"] and run["step"] == 2
        assert run["calls"] == 2 * 2
    assert "step 2 was skipped" in runs[0]["warned"][0]
    assert bits(runs[0]["params"]) == bits(runs[1]["params"])


def refused(rank, world_size, address, job, case):
    """The message of the error that building the optimizer raises."""
    shapes, keywords, layout = {"w": (6, 4)}, dict(HYPERS), "rows"
    if case == "other-lr-shape":
        shapes = {"w": (6, 4 + rank)}
        layout, keywords["reduced"] = "plain", True
    elif case == "plain":
        layout = "plain"
    elif case == "float16":
        return build(Bag({"w": torch.zeros(6, 4, dtype=torch.float16)}, "rows"), address, job, keywords)
    elif case == "row-blocks":
        keywords["rules"] = [dmuon.Rule("muon", name="w", view=dmuon.RowBlocks([4, 4]))]
    elif case == "unused-view":
        keywords["rules"] = [dmuon.Rule("muon", name="v", view="experts")]
    elif case == "stack":
        shapes = {"stack": (2, 6, 4)}
    elif case == "fsdp1":
        model = torch.nn.Sequential(torch.nn.Linear(6, 4))
        return build(FullyShardedDataParallel(model, device_id=torch.device("cpu")), address, job, keywords)
    elif case == "part-of-the-mesh":
        mesh = dist.init_device_mesh("cpu", (world_size, 1), mesh_dim_names=("replicate", "shard"))
        model = torch.nn.Sequential(torch.nn.Linear(6, 4, bias=False))
        dist.fsdp.fully_shard(model, mesh=mesh["shard"])
        return build(model, address, job, keywords)
    return build(Bag(random_tensors(shapes, 0), layout), address, job, keywords)


def build(model, address, job, keywords):
    try:
        dmuon.Muon(model, job=job, address=address, verbose=False, timeout=20, **keywords).close()
    except (ValueError, TypeError, dmuon.DmuonError) as error:
        return str(error)
    return "accepted"


@pytest.mark.parametrize(("case", "named"), [
    ("other-lr-shape", ["DMUON_SPEC_MISMATCH"]),
    ("plain", ["w is a plain parameter, one of 2 workers"]),  # cases row 22
    ("float16", ["w is torch.float16"]),
    ("row-blocks", ["w (6, 4)", "sum to 8 rows of 6"]),
    ("unused-view", ["rule 0", "'v'", "decides on no parameter"]),
    ("stack", ["stack (2, 6, 4)", "view='experts'", "view='flatten'"]),  # cases row 17
    ("fsdp1", ["FSDP1", "fully_shard"]),  # cases rows 27 and 28
    ("part-of-the-mesh", ["0.weight lies on a device mesh of 1 workers, but the job has 2", "mesh="]),
])
def test_what_cannot_be_right_is_refused_by_name(pools, daemon, job, case, named):
    for message in pools(2).run(refused, daemon.address, job, case):
        assert all(word in message for word in named), message


def one_rank_stays_away(rank, world_size, address, job):
    bag = Bag(random_tensors(SHAPES, 0), "rows")
    opt = dmuon.Muon(bag, job=job, address=address, verbose=False, timeout=4, **HYPERS)
    bag.feed(random_tensors(SHAPES, 1))
    message = ""
    if rank == 0:
        try:
            opt.step()
        except dmuon.DmuonError as error:
            message = str(error)
    dist.barrier()
    opt.step()  # the step was not lost
    params = whole_params(bag)
    opt.close()
    return message, params


def test_a_rank_that_does_not_come_is_named_in_time_and_the_step_goes_on_later(pools, daemon, job):
    # cases rows 2 and 65
    runs = pools(2).run(one_rank_stays_away, daemon.address, job)
    assert "DMUON_DEADLINE_EXCEEDED" in runs[0][0] and "1" in runs[0][0]
    reference = trainers.feed_plain(SHAPES, steps=1, is_muon=lambda n: n != "bias")
    assert difference(runs[1][1], reference[-1]) <= FP32


def wrong_gradient(rank, world_size, address, job, kind):
    weight = torch.nn.Parameter(torch.zeros(4, 4))
    holder = torch.nn.Embedding(4, 4, sparse=True) if kind == "sparse" else torch.nn.Module()
    if kind == "sparse":
        weight = holder.weight
        holder(torch.tensor([1, 2])).sum().backward()
    else:
        holder.register_parameter("weight", weight)
        weight.grad_dtype = None  # lets a gradient of another dtype in
        weight.grad = torch.zeros(4, 4, dtype=torch.bfloat16)
    with dmuon.Muon(holder, job=job, address=address, verbose=False) as opt:
        try:
            opt.step()
        except TypeError as error:
            return str(error)
    return "accepted"


@pytest.mark.parametrize(("kind", "named"), [("sparse", "only dense gradients"),
                                             ("bf16", "is torch.bfloat16, its parameter torch.float32")])
def test_a_gradient_of_another_kind_is_refused_by_name(pools, daemon, job, kind, named):
    (message,) = pools(1).run(wrong_gradient, daemon.address, job, kind)
    assert "gradient of weight" in message and named in message
