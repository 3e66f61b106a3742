# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""Which rows QK-clip multiplies by what. No daemon needed."""

import math

import pytest
import torch
from dmuon_client import QKClip
from dmuon_client.qk_clip import resolve, row_factors

# name -> (number in the session, shape): 4 heads of 3 rows, 2 key heads.
TENSORS = {"l.0.q.weight": (0, (12, 8)), "l.0.k.weight": (1, (6, 8)), "l.0.q.bias": (2, (12,)),
           "l.1.q.weight": (3, (12, 8)), "l.1.k.weight": (4, (6, 8)), "l.1.k.bias": (5, (6,)),
           "fused.weight": (6, (24, 8)), "fused.bias": (7, (24,))}
SEPARATE = QKClip(4, query="l.*.q.weight", key="l.*.k.weight", kv_heads=2)
FUSED = QKClip(4, fused="fused.weight", kv_heads=2)
COOL = [1.0, 2.0, 3.0, 100.0]


def multiplied(clips, maxima):
    return [(r.tensor, r.first_row, r.rows_each, list(r.factors)) for r in row_factors(resolve(clips, TENSORS), maxima, 1)]


def test_heads_at_the_threshold_or_below_are_left_alone():
    assert multiplied([SEPARATE], {"l.0.q.weight": COOL, "l.1.q.weight": torch.zeros(4)}) == []


def test_queries_and_keys_share_the_factor_and_biases_go_with_them():
    found = multiplied([SEPARATE], {"l.0.q.weight": torch.tensor([400.0, 1, 1, 1]), "l.1.q.weight": [1, 1, 1600.0, 400.0]})
    assert found == [(0, 0, 3, [0.5, 1, 1, 1]), (2, 0, 3, [0.5, 1, 1, 1]), (1, 0, 3, [0.5, 1]),
                     (3, 0, 3, [1, 1, 0.25, 0.5]), (4, 0, 3, [1, 0.25]), (5, 0, 3, [1, 0.25])]


def test_of_a_fused_weight_the_values_are_left_alone():
    # 4 heads of queries, 2 of keys and 2 of values make 24 rows: 3 a head.
    found = multiplied([FUSED], {"fused.weight": [400.0, 100, 100, 100]})
    assert found == [(6, 0, 3, [0.5, 1, 1, 1]), (7, 0, 3, [0.5, 1, 1, 1]), (6, 12, 3, [0.5, 1]), (7, 12, 3, [0.5, 1])]


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 1.0])
def test_no_logit_stays_above_the_threshold(alpha):
    clip = QKClip(4, fused="fused.weight", kv_heads=2, tau=50.0, alpha=alpha)
    maxima = [49.0, 51.0, 1e4, 700.0]
    factors = dict(((first, rows) for _, first, _, rows in multiplied([clip], {"fused.weight": maxima})))
    queries, keys = factors.get(0, [1.0] * 4), factors.get(12, [1.0] * 2)
    after = [s * q * keys[i // 2] for i, (s, q) in enumerate(zip(maxima, queries, strict=True))]
    assert max(after) <= 50.0 * (1 + 1e-9)
    assert after[2] == pytest.approx(50.0)  # the largest of its group, exactly


@pytest.mark.parametrize(("clip", "complaint"), [
    (QKClip(4), "give query and key, or fused"),
    (QKClip(4, query="a"), "give query and key, or fused"),
    (QKClip(4, query="a", key="b", fused="c"), "give query and key, or fused"),
    (QKClip(4, fused="c", kv_heads=3), "heads must be a multiple of kv_heads"),
    (QKClip(4, fused="c", tau=0.0), "tau must be above 0"),
    (QKClip(4, fused="c", alpha=math.nan), r"alpha in \[0, 1\]"),
])
def test_a_rule_that_makes_no_sense_is_refused(clip, complaint):
    with pytest.raises(ValueError, match=complaint):
        clip.validate()


@pytest.mark.parametrize(("clip", "complaint"), [
    (QKClip(4, fused="x.*"), r"no tensor that the service holds is called 'x\.\*'"),
    (QKClip(4, query="l.*.q.weight", key="l.*.key"), r"the service holds no l\.0\.key, the keys of l\.0\.q\.weight"),
    (QKClip(4, query="l.*.q.weight", key="l.*.k.weight"), r"l\.0\.k\.weight has 6 rows; it must have 4 heads of 3"),
    (QKClip(5, query="l.*.q.weight", key="l.*.k.weight"), r"l\.0\.q\.weight has 12 rows, which 5 heads cannot share"),
])
def test_a_rule_that_fits_no_weights_is_refused_by_name(clip, complaint):
    with pytest.raises(ValueError, match=complaint):
        resolve([clip], TENSORS)


def test_a_weight_belongs_to_one_rule():
    with pytest.raises(ValueError, match=r"fused\.weight is clipped already"):
        resolve([FUSED, FUSED], TENSORS)


@pytest.mark.parametrize(("maxima", "complaint"), [
    (None, r"nothing for fused\.weight"),
    ({"fused.weight": [1.0]}, r"has 1 numbers; it must have 4"),
    ({"fused.weight": [1, 1, math.nan, 1]}, r"qk_max of fused\.weight, head 2, is nan"),
    ({"fused.weight": [1, math.inf, 1, 1]}, "head 1, is inf"),
    ({"fused.weight": [-1.0, 1, 1, 1]}, r"head 0, is -1\.0; it must be finite and at least 0"),
    ({"fused.weight": COOL, "typo": COOL}, "names typo, which no qk_clip does"),
])
def test_bad_maxima_are_refused_by_parameter_and_head(maxima, complaint):
    with pytest.raises(ValueError, match=complaint):
        row_factors(resolve([FUSED], TENSORS), maxima, 1)


def test_maxima_without_a_rule_are_refused():
    with pytest.raises(ValueError, match="has no qk_clip"):
        row_factors([], {"fused.weight": COOL}, 1)
