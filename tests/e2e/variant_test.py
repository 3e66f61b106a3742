# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""Every optimizer of the family by one word: the same bits on one worker and on four."""

import dmuon_client as dmuon
import pytest
import torch
from dmuon_client.options import VARIANTS
from trainers import Bag, bits, difference, random_tensors, whole_params

STEPS = 5
SHAPES = {"wide": (8, 12), "tall": (13, 6), "b": (5,)}


def stepped(rank, world_size, address, job, keywords, steps=1, shapes=SHAPES):
    """Parameters after some steps and the Newton-Schulz calls of them, or the refusal. `keywords`: or a list of
    each rank's."""
    bag = Bag(random_tensors(shapes, 0), "rows")
    mine = keywords[rank] if isinstance(keywords, list) else keywords
    try:
        with dmuon.Muon(bag, job=job, address=address, verbose=False, **mine) as opt:
            for step in range(1, steps + 1):
                bag.feed(random_tensors(shapes, step))
                opt.step()
            return whole_params(bag), opt.result.newton_schulz_calls
    except dmuon.DmuonError as error:
        return str(error)


@pytest.mark.parametrize("variant", VARIANTS)
def test_one_worker_and_four_have_the_same_bits(pools, module_daemon, job, variant):
    alone, spread = (pools(workers).run(stepped, module_daemon.address, f"{job}.{workers}", {"variant": variant}, STEPS)
                     for workers in (1, 4))
    for params, calls in spread:
        assert bits(params) == bits(alone[0][0])
        assert calls == 2 * STEPS


def test_each_variant_takes_a_step_of_its_own(pools, module_daemon, job):
    steps = {v: pools(1).run(stepped, module_daemon.address, f"{job}.{v}", {"variant": v, "lr": 0.02, "weight_decay": 0.0})[0][0]
             for v in VARIANTS}
    # MONA's first step has nothing to accelerate; its momentum is another multiple of the gradient.
    assert difference(steps.pop("mona"), steps["muon"]) <= 1e-6
    assert len({str(bits(step)) for step in steps.values()}) == len(steps)


@pytest.mark.parametrize(("keywords", "complaint"), [
    ({"selected": 0.5}, "selected means nothing to VARIANT_MUON"),
    ({"variant": "dion2", "nesterov": True}, "selected is below 1"),
    ({"variant": "normuon", "rms": 0.3}, "rms means nothing to VARIANT_NORMUON"),
    ({"variant": "adamuon", "scale": "original"}, "scale must be none"),
    ({"variant": "numuon", "iterations": 5}, "iterations means nothing to VARIANT_NUMUON"),
    ({"variant": "numuon", "coefficients": [(2, -1.5, 0.5)]}, "polynomials means nothing to VARIANT_NUMUON"),
    ({"variant": "numuon", "rank_end": 0.5}, "rank_end means nothing without rank_steps"),
    ({"rank_start": 0.5}, "rank_start means nothing to VARIANT_MUON"),
    ({"coefficients": [(3, 0, 0)]}, "coefficients take the singular value"),
    ({"variant": "muon2", "second_moment_eps": 0.0}, "second_moment_eps is 0; must be finite and above 0"),
])
def test_a_setting_that_makes_no_sense_is_refused_by_name(pools, module_daemon, job, keywords, complaint):
    refusal = pools(1).run(stepped, module_daemon.address, job, keywords)[0]
    assert isinstance(refusal, str) and complaint in refusal and "group 'muon'" in refusal


def test_numuon_moves_the_largest_singular_directions(pools, module_daemon, job):
    keywords = {"variant": "numuon", "rank_start": 0.5, "lr": 0.1, "weight_decay": 0.0}
    after, _ = pools(2).run(stepped, module_daemon.address, job, keywords)[0]
    for name, scale in (("wide", 1.0), ("tall", (13 / 6) ** 0.5)):
        left, _, right = torch.linalg.svd(random_tensors(SHAPES, 1)[name], full_matrices=False)
        k = min(SHAPES[name]) // 2
        expected = random_tensors(SHAPES, 0)[name] - 0.1 * scale * left[:, :k] @ right[:k]
        assert torch.allclose(torch.from_numpy(after[name]), expected, atol=1e-5)


def test_numuon_by_block_krylov_has_the_same_bits_on_one_worker_and_on_three(pools, module_daemon, job):
    shapes = {"large": (72, 96), "tall": (120, 60)}  # blocks of 2 * (8 + 8) and 2 * (6 + 8) vectors
    keywords = {"variant": "numuon", "rank_start": 0.1}
    alone, spread = (pools(workers).run(stepped, module_daemon.address, f"{job}.{workers}", keywords, STEPS, shapes)
                     for workers in (1, 3))
    assert bits(spread[2][0]) == bits(alone[0][0])


def test_a_list_of_coefficients_is_what_runs(pools, module_daemon, job):
    jordan = (3.4445, -4.7750, 2.0315)
    runs = {what: pools(1).run(stepped, module_daemon.address, f"{job}.{i}", {"coefficients": given, "iterations": 5})[0][0]
            for i, (what, given) in enumerate({"word": "jordan", "list": [jordan], "other": [jordan, (2, -1.5, 0.5)]}.items())}
    assert bits(runs["list"]) == bits(runs["word"])
    assert difference(runs["other"], runs["word"]) > 1e-3


def test_workers_with_different_coefficients_are_refused(pools, module_daemon, job):
    refusals = pools(2).run(stepped, module_daemon.address, job, [{"coefficients": [(2, -1.5, 0.5)]},
                                                                  {"coefficients": [(2, -1.5, 0.4)]}])
    assert any("DMUON_SPEC_MISMATCH" in str(refusal) for refusal in refusals)


def test_bf16_differs_from_fp32_by_what_bf16_rounds(pools, module_daemon, job):
    runs = {p: pools(1).run(stepped, module_daemon.address, f"{job}.{p}", keywords)[0][0]
            for p, keywords in {"default": {}, "fp32": {"precision": "fp32"}, "bf16": {"precision": "bf16"}}.items()}
    assert bits(runs["default"]) == bits(runs["fp32"])
    assert 1e-6 < difference(runs["bf16"], runs["fp32"]) < 1e-3  # of weights, at a learning rate of 0.02


def test_paper_form_of_normuon_moves_by_its_rms(pools, module_daemon, job):
    keywords = {"variant": "normuon", "rescale": "rms", "rms": 0.3, "lr": 0.1, "weight_decay": 0.0}
    after, _ = pools(1).run(stepped, module_daemon.address, job, keywords)[0]
    moved = torch.from_numpy(after["wide"]) - random_tensors(SHAPES, 0)["wide"]
    assert moved.square().mean().sqrt().item() == pytest.approx(0.03, rel=1e-4)


def test_cautious_decay_leaves_growing_weights_alone(pools, module_daemon, job):
    runs = {(cautious, decay): pools(1).run(stepped, module_daemon.address, f"{job}.{cautious}.{decay}",
                                            {"lr": 0.1, "weight_decay": decay, "cautious": cautious})[0][0]["wide"]
            for cautious in (False, True) for decay in (0.0, 1.0)}
    plain = runs[False, 1.0] != runs[False, 0.0]
    cautious = runs[True, 1.0] != runs[True, 0.0]
    assert plain.mean() > 0.9 and 0.2 < cautious.mean() < 0.8
