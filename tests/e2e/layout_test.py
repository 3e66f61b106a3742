# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""The same gradients give the same parameters, however they are cut up, and every option means what
it means in plain PyTorch. Gradients are dictated by the test."""

import math

import dmuon_client as dmuon
import numpy as np
import pytest
import torch
import trainers
from plain_muon import YOU
from trainers import HYPERS, bits, difference, feed, feed_plain

FP32 = 1e-5
# Uneven, fewer rows than ranks, one row, one column, tall, wide.
SHAPES = {"tall": (29, 8), "wide": (7, 40), "few": (2, 9), "row": (1, 64), "column": (64, 1),
          "square": (16, 16), "vector": (5,)}
ALL_MATRICES = dict(HYPERS, min_dim=1)  # single rows and columns, too


def is_muon(name: str) -> bool:
    return name != "vector"


@pytest.mark.parametrize(("workers", "layout"), [
    (1, "rows"), (2, "rows"), (3, "rows"), (2, "replicate")])
def test_every_sharding_equals_plain_pytorch(pools, daemon, job, workers, layout):
    # cases rows 1, 2, 3, 4, 11, 25, 30, 61
    runs = pools(workers).run(feed, daemon.address, job, SHAPES, layout=layout, keywords=ALL_MATRICES)
    reference = feed_plain(SHAPES, is_muon=is_muon)
    for run in runs:
        assert [difference(a, b) <= FP32 for a, b in zip(run["params"], reference, strict=True)] == [True] * 4
        assert run["routes"] == {n: "muon" if is_muon(n) else "adamw" for n in SHAPES}
        assert run["results"][-1].newton_schulz_calls == 3 * sum(map(is_muon, SHAPES))


def test_sharding_does_not_change_a_bit(pools, daemon, job):
    histories = [[bits(p) for p in pools(workers).run(
        feed, daemon.address, f"{job}.{workers}.{layout}", SHAPES, layout=layout, keywords=ALL_MATRICES)[0]["params"]]
        for workers, layout in ((1, "rows"), (2, "rows"), (3, "rows"), (2, "replicate"))]
    assert all(history == histories[0] for history in histories)


def test_columns_can_be_sharded(pools, daemon, job):
    shapes = {"a": (8, 5), "b": (3, 16)}
    runs = pools(3).run(feed, daemon.address, job, shapes, layout="columns")
    assert difference(runs[2]["params"][-1], feed_plain(shapes)[-1]) <= FP32


def test_state_keys_do_not_depend_on_who_holds_rows(pools, daemon, job):
    # cases row 21
    runs = pools(3).run(feed, daemon.address, job, {"w": (2, 8)}, steps=1)
    assert runs[0]["keys"] == runs[1]["keys"] == runs[2]["keys"]


def local_gradients(step: int, rank: int):
    return trainers.random_tensors({"w": (8, 8)}, 100 * step + rank)


def mean_gradients(step: int):
    parts = [local_gradients(step, rank)["w"] for rank in range(2)]
    return {"w": (parts[0] + parts[1]) / 2}


def test_unreduced_gradients_are_averaged_before_newton_schulz(pools, daemon, job):
    # cases row 22
    runs = pools(2).run(feed, daemon.address, job, {"w": (8, 8)}, layout="plain", grads=local_gradients,
                        keywords=dict(HYPERS, reduced=False))
    reference = feed_plain({"w": (8, 8)}, grads=mean_gradients)
    assert difference(runs[0]["params"][-1], reference[-1]) <= FP32
    assert bits(runs[0]["params"][-1]) == bits(runs[1]["params"][-1])


def three_and_four(step: int, rank: int):
    grad = torch.zeros(2, 4)
    grad[0, 0], grad[1, 0] = 3.0, 4.0
    return {"w": grad}


def test_gradient_norm_is_of_the_whole_gradient_on_all_ranks(pools, daemon, job):
    # cases row 43
    runs = pools(2).run(feed, daemon.address, job, {"w": (2, 4)}, steps=1, grads=three_and_four)
    assert [run["results"][0].grad_norm for run in runs] == pytest.approx([5.0, 5.0], rel=1e-12)


def test_clipping_acts_on_the_raw_gradient(pools, daemon, job):
    hypers = dict(HYPERS, max_grad_norm=0.5)
    runs = pools(2).run(feed, daemon.address, job, SHAPES, keywords=dict(hypers, min_dim=1))
    reference = feed_plain(SHAPES, is_muon=is_muon, hypers=hypers)
    assert difference(runs[0]["params"][-1], reference[-1]) <= FP32
    result = runs[0]["results"][0]
    assert result.clip == pytest.approx(0.5 / result.grad_norm, rel=1e-3)


def ones(step: int, rank: int):
    return {"w": torch.ones(7, 4)}


def test_all_rows_of_an_uneven_weight_move_alike(pools, daemon, job):
    # cases row 8
    keywords = dict(adamw={"lr": 0.1}, rules=[dmuon.Rule("adamw", name="*")])
    runs = pools(2).run(feed, daemon.address, job, {"w": (7, 4)}, steps=1, grads=ones, keywords=keywords)
    before, after = (p["w"] for p in runs[1]["params"])
    np.testing.assert_allclose(before - after, np.full((7, 4), 0.1), rtol=1e-5)


def test_worker_without_matrices_is_accepted(pools, daemon, job):
    # cases row 71
    runs = pools(2).run(feed, daemon.address, job, {"a": (5,), "b": ()}, layout="plain", steps=2,
                        keywords=dict(HYPERS, reduced=True))
    reference = feed_plain({"a": (5,), "b": ()}, steps=2, is_muon=lambda n: False)
    assert difference(runs[0]["params"][-1], reference[-1]) <= FP32
    assert runs[0]["units"] == 0


@pytest.mark.parametrize(("keywords", "plain"), [
    ({"momentum_form": "accumulate"}, {"accumulate": True}),
    ({"nesterov": False, "scale": "spectral"}, {"nesterov": False, "scale": "spectral"}),
    ({"scale": "match_rms_adamw", "coefficients": "you"},
     {"scale": "match_rms_adamw", "coefficients": YOU}),
    ({"scale": "none", "iterations": 3}, {"scale": "none", "iterations": 3}),
    ({"momentum": 0.8}, {"momentum": 0.8}),
])
def test_options_mean_what_they_mean_in_plain_pytorch(pools, daemon, job, keywords, plain):
    runs = pools(1).run(feed, daemon.address, job, SHAPES, layout="plain", keywords=dict(ALL_MATRICES, **keywords))
    reference = feed_plain(SHAPES, is_muon=is_muon, **plain)
    assert difference(runs[0]["params"][-1], reference[-1]) <= FP32


def no_gradient_but_zero(step: int, rank: int):
    return {n: torch.zeros(s) for n, s in {"decayed": (4, 4), "kept": (4, 4), "bias": (4,)}.items()}


def test_groups_keep_their_own_decay(pools, daemon, job):
    # cases row 99
    keywords = dict(lr=0.5, weight_decay=0.1, adamw={"lr": 0.5, "weight_decay": 0.2},
                    rules=[dmuon.Rule("muon", name="kept", weight_decay=0.0)])
    runs = pools(2).run(feed, daemon.address, job, {"decayed": (4, 4), "kept": (4, 4), "bias": (4,)},
                        steps=1, grads=no_gradient_but_zero, keywords=keywords)
    before, after = runs[0]["params"]
    np.testing.assert_array_equal(after["kept"], before["kept"])
    np.testing.assert_allclose(after["decayed"], before["decayed"] * 0.95, rtol=1e-6)
    np.testing.assert_allclose(after["bias"], before["bias"] * 0.9, rtol=1e-6)


def strided_gradients(step: int, rank: int):
    kernel = trainers.random_tensors({"kernel": (8, 4, 3, 3)}, step)["kernel"]
    matrix = trainers.random_tensors({"matrix": (6, 10)}, step)["matrix"]
    strided = {"kernel": kernel.to(memory_format=torch.channels_last), "matrix": matrix.t().contiguous().t()}
    assert not any(g.is_contiguous() for g in strided.values())
    return strided


def contiguous_gradients(step: int):
    return {n: g.contiguous() for n, g in strided_gradients(step, 0).items()}


def test_strides_of_a_gradient_do_not_matter(pools, daemon, job):
    # cases row 60; the kernel counts as 8 x 36
    shapes = {"kernel": (8, 4, 3, 3), "matrix": (6, 10)}
    keywords = dict(HYPERS, rules=[dmuon.Rule("muon", name="kernel", view="flatten")])
    runs = pools(1).run(feed, daemon.address, job, shapes, layout="plain", grads=strided_gradients,
                        keywords=keywords)
    assert difference(runs[0]["params"][-1], feed_plain(shapes, grads=contiguous_gradients)[-1]) <= FP32


def test_single_row_is_normalised_along_its_momentum(pools, daemon, job):
    # cases row 61: scale x one Newton-Schulz singular value, about 0.7 with Jordan's coefficients
    shapes = {"row": (1, 64), "column": (64, 1)}
    runs = pools(2).run(feed, daemon.address, job, shapes, steps=1,
                        keywords={"lr": 1.0, "rules": [dmuon.Rule("muon", name="row"), dmuon.Rule("muon", name="column")]})
    grads = trainers.random_tensors(shapes, 1)
    for name, scale in (("row", 1.0), ("column", 8.0)):
        update = (runs[0]["params"][0][name] - runs[0]["params"][1][name]).ravel()
        direction = grads[name].numpy().ravel() / grads[name].norm().item()
        size = float(np.linalg.norm(update))
        assert 0.65 <= size / scale <= 1.2
        assert math.isclose(float(update @ direction), size, rel_tol=1e-5)


def test_single_rows_and_columns_go_to_adamw_unless_told_otherwise(pools, daemon, job):
    # cases row 61, with the default routes
    shapes = {"row": (1, 64), "column": (64, 1), "matrix": (4, 6)}
    runs = pools(2).run(feed, daemon.address, job, shapes)
    reference = feed_plain(shapes, is_muon=lambda name: name == "matrix")
    for run in runs:
        assert run["routes"] == {"row": "adamw", "column": "adamw", "matrix": "muon"}
        assert difference(run["params"][-1], reference[-1]) <= FP32


@pytest.mark.parametrize(("workers", "blocks"), [(2, [8, 2, 2]), (4, [8] * 6)])
def test_row_blocks_are_orthogonalised_on_their_own(pools, daemon, job, workers, blocks):
    # cases row 17: six experts of 8 rows are whole at their owners, though the workers have 12 rows each
    shapes = {"fused": (sum(blocks), 6)}
    runs = pools(workers).run(feed, daemon.address, job, shapes, steps=2,
                              keywords=dict(HYPERS, rules=[dmuon.Rule("muon", view=dmuon.RowBlocks(blocks))]))
    got = runs[0]["params"][-1]["fused"]
    assert runs[0]["results"][-1].newton_schulz_calls == 2 * len(blocks)

    def parts(step):
        split = trainers.random_tensors(shapes, step)["fused"].split(blocks)
        return {f"p{i}": t for i, t in enumerate(split)}

    bag = trainers.Bag(parts(0), "plain")
    optimizer = trainers.PlainPair(bag, lambda n: True, **HYPERS)
    for step in (1, 2):
        bag.feed(parts(step))
        optimizer.step()
    want = np.concatenate([p.detach().numpy() for p in bag.parameters()])
    assert difference({"fused": got}, {"fused": want}) <= FP32
