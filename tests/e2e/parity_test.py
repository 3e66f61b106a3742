# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""Training through the service is the same training as in one process without it."""

import functools

import numpy as np
import pytest
import torch
import trainers
from trainers import Small, bits, difference

STEPS = 30
# fp32 on both sides, different summation orders; measured below 2e-6.
FP32 = 1e-5
# torch.optim.Muon runs Newton-Schulz in bf16.
BF16_NEWTON_SCHULZ = 2e-2

plain = functools.cache(trainers.train_plain)


def worst(run, reference) -> float:
    assert len(run["params"]) == len(reference)
    return max(difference(a, b) for a, b in zip(run["params"], reference, strict=True))


def assert_ranks_bit_equal(runs) -> None:
    for run in runs[1:]:
        for step, (a, b) in enumerate(zip(run["params"], runs[0]["params"], strict=True), 1):
            assert bits(a) == bits(b), f"ranks differ after step {step}"


@pytest.mark.parametrize(("workers", "parallel"), [
    (1, "one"), (1, "zero3"), (2, "zero3"), (2, "zero2"), (2, "ddp"), (2, "owned"), (3, "zero3"), (3, "ddp")])
def test_thirty_steps_equal_plain_pytorch(pools, daemon, job, workers, parallel):
    # cases rows 3, 4, 12, 22, 30; with 3 workers `narrow` has fewer rows than ranks (rows 1, 2)
    runs = pools(workers).run(trainers.train, daemon.address, job, parallel=parallel, steps=STEPS)
    assert worst(runs[0], plain(steps=STEPS)) <= FP32
    assert_ranks_bit_equal(runs)
    # cases row 31: matrices x steps, whatever the number of workers
    assert runs[0]["units"] == Small.MATRICES
    assert [run["calls"] for run in runs] == [Small.MATRICES * STEPS] * workers
    assert {n for n, r in runs[0]["routes"].items() if r == "muon"} == {
        n for n, _ in Small().named_parameters() if trainers.is_matrix(n)}


def test_thirty_steps_follow_torch_muon(pools, daemon, job):
    model = trainers.make_small(False, torch.float32)
    matrices = [p for n, p in model.named_parameters() if trainers.is_matrix(n)]
    rest = [p for n, p in model.named_parameters() if not trainers.is_matrix(n)]
    optimizers = [
        torch.optim.Muon(matrices, lr=0.02, weight_decay=0.1, adjust_lr_fn="original"),
        torch.optim.AdamW(rest, lr=3e-3, betas=(0.9, 0.95), weight_decay=0.05)]
    for step in range(STEPS):
        model.zero_grad()
        trainers.backward(model, trainers.tokens_of(step))
        for optimizer in optimizers:
            optimizer.step()
    runs = pools(2).run(trainers.train, daemon.address, job, steps=STEPS)
    assert difference(runs[0]["params"][-1], trainers.whole_params(model)) <= BF16_NEWTON_SCHULZ


@pytest.mark.parametrize("workers", [2, 3])
def test_two_runs_with_one_seed_have_the_same_bits(pools, daemon, job, workers):
    runs = [pools(workers).run(trainers.train, daemon.address, f"{job}.{i}", steps=10)[0]
            for i in range(2)]
    assert list(map(bits, runs[0]["params"])) == list(map(bits, runs[1]["params"]))


@pytest.mark.parametrize("micro_batches", [2])
def test_accumulated_gradients_equal_one_large_batch(pools, daemon, job, micro_batches):
    runs = pools(2).run(trainers.train, daemon.address, job, steps=10, micro_batches=micro_batches)
    assert worst(runs[0], plain(steps=STEPS)[:10]) <= FP32


def test_learning_rate_schedulers_reach_the_service(pools, daemon, job):
    runs = pools(2).run(trainers.train, daemon.address, job, steps=10, lr_factors=True)
    assert worst(runs[0], plain(steps=10, lr_factors=True)) <= FP32
    assert difference(runs[0]["params"][-1], plain(steps=STEPS)[9]) > 100 * FP32


@pytest.mark.parametrize(("workers", "parallel"), [(2, "zero3"), (3, "zero2"), (2, "ddp")])
def test_tied_weight_is_updated_once_for_both_names(pools, daemon, job, workers, parallel):
    # cases rows 8 and 75
    runs = pools(workers).run(trainers.train, daemon.address, job, parallel=parallel, steps=10, tied=True)
    assert worst(runs[0], plain(steps=10, tied=True)) <= FP32
    assert runs[0]["routes"]["embedding.weight"] == "adamw"
    assert "head.weight" not in runs[0]["routes"]
    assert_ranks_bit_equal(runs)


@pytest.mark.parametrize("parallel", ["zero3", "ddp"])
def test_bf16_parameters_train_and_ranks_agree(pools, daemon, job, parallel):
    runs = pools(2).run(trainers.train, daemon.address, job, parallel=parallel, steps=10,
                        dtype=torch.bfloat16)
    assert_ranks_bit_equal(runs)
    # bf16 gradients differ from fp32 ones by 2^-8 relative; the runs stay near each other.
    assert worst(runs[0], plain(steps=STEPS)[:10]) <= 0.1


@pytest.mark.parametrize("layout", ["rows", "plain"])
def test_bf16_parameters_are_the_fp32_masters_rounded(pools, daemon, job, layout):
    """Two jobs get the same gradients, which bf16 holds exactly: the fp32 one shows the masters."""
    shapes = {"w": (29, 12), "bias": (12,)}
    keywords = dict(trainers.HYPERS, reduced=True if layout == "plain" else None)
    bf16, fp32 = (pools(2).run(trainers.feed, daemon.address, f"{job}.{dtype}", shapes, steps=5,
                               layout=layout, dtype=dtype, keywords=keywords)[0]["params"]
                  for dtype in (torch.bfloat16, torch.float32))
    for a, b in zip(bf16, fp32, strict=True):
        for name in shapes:
            rounded = torch.from_numpy(b[name]).bfloat16().float().numpy()
            np.testing.assert_array_equal(a[name], rounded)
