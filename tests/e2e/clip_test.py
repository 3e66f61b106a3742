# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""QK-clip through the service: the right rows of masters and parameters, once, for the maxima of all workers."""

import dmuon_client as dmuon
import numpy as np
import pytest
import torch
from trainers import Bag, bits, random_tensors, whole_params

SHAPES = {"q_weight": (12, 8), "k_weight": (6, 8), "v_weight": (6, 8), "q_bias": (12,)}
CLIP = {"qk_clip": [dmuon.QKClip(4, query="q_weight", key="k_weight", kv_heads=2)]}


def clipped(rank, world_size, address, job, maxima):
    """Parameters after each step; `maxima[step][rank]`, or None for a run without QK-clip. A refused step is tried
    again with zeros."""
    bag, refusals = Bag(random_tensors(SHAPES, 0), "rows"), []
    history = [whole_params(bag)]
    with dmuon.Muon(bag, job=job, address=address, verbose=False, lr=0.02, **(CLIP if maxima else {})) as opt:
        for step in range(1, 4):
            bag.feed(random_tensors(SHAPES, step))
            if not maxima:
                opt.step()
            else:
                try:
                    opt.step(qk_max={"q_weight": torch.tensor(maxima[step - 1][rank])})
                except ValueError as error:
                    refusals.append(str(error))
                    assert opt.last_step == step - 1
                    opt.step(qk_max={"q_weight": torch.zeros(4)})
            history.append(whole_params(bag))
    return history, refusals


COOL = [[[1.0, 2, 3, 100]] * 2] * 3


def test_logits_below_the_threshold_change_no_bit(pools, module_daemon, job):
    plain, cool = (pools(2).run(clipped, module_daemon.address, f"{job}.{i}", maxima)[0][0] for i, maxima in enumerate((None, COOL)))
    assert [bits(p) for p in plain] == [bits(p) for p in cool]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_hot_heads_shrink_once_after_the_update_by_the_largest_of_all_workers(pools, module_daemon, job, workers):
    # The last worker alone has seen the hot heads of the third and last step.
    hot = [[[1.0] * 4] * workers, [[1.0] * 4] * workers, [[1.0] * 4] * (workers - 1) + [[1.0, 400.0, 1600.0, 1.0]]]
    plain = pools(workers).run(clipped, module_daemon.address, f"{job}.plain", None)[0][0]
    runs = pools(workers).run(clipped, module_daemon.address, f"{job}.hot", hot)
    expected = dict(plain[3])
    queries = np.repeat(np.float32([1, 0.5, 0.25, 1]), 3)
    expected["q_weight"] = plain[3]["q_weight"] * queries[:, None]
    expected["q_bias"] = plain[3]["q_bias"] * queries
    expected["k_weight"] = plain[3]["k_weight"] * np.repeat(np.float32([0.5, 0.25]), 3)[:, None]
    for history, _ in runs:
        assert bits(history[2]) == bits(plain[2])
        assert bits(history[3]) == bits(expected)


def test_a_maximum_that_is_not_finite_is_refused_on_all_workers_and_changes_nothing(pools, module_daemon, job):
    broken = [[[1.0] * 4] * 2, [[1.0] * 4, [1.0, 1.0, float("nan"), 1.0]], [[1.0] * 4] * 2]
    plain = pools(2).run(clipped, module_daemon.address, f"{job}.plain", None)[0][0]
    for history, refusals in pools(2).run(clipped, module_daemon.address, f"{job}.nan", broken):
        assert refusals == ["rank 1: qk_max of q_weight, head 2, is nan; it must be finite and at least 0"]
        assert [bits(p) for p in history] == [bits(p) for p in plain]
