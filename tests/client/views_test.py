# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""What a view says of a global shape, and what it refuses. No daemon needed."""

import pytest
from dmuon_client import QKV, Experts, GateUp, RowBlocks, _abi
from dmuon_client.views import Matrices, matrices_of
from torch import nn

LINEAR, STACK = nn.Linear(1, 1), nn.Module()


def seen(shape, view, module=STACK) -> Matrices:
    return matrices_of("w", shape, module, view)


def test_stacked_attention_is_three_matrices():
    assert seen((192, 20), QKV(8, 2, 16)) == Matrices(_abi.DMUON_VIEW_MATRIX, (128, 32, 32), 1)


def test_interleaved_attention_repeats_the_rows_of_one_group():
    # cases row 59
    assert seen((192, 20), QKV(8, 2, 16, layout="interleaved")) == Matrices(_abi.DMUON_VIEW_MATRIX, (64, 16, 16), 2)


@pytest.mark.parametrize("layout", ["stacked", "interleaved"])
def test_heads_lie_in_one_piece_in_both_layouts(layout):
    heads = seen((192, 20), QKV(8, 2, 16, layout=layout, per_head=True))
    assert heads == Matrices(_abi.DMUON_VIEW_MATRIX, (16,) * 12, 1)
    assert heads.count((192, 20)) == 12


def test_gate_and_up_are_halves_or_every_other_row():
    assert seen((10, 4), GateUp()) == Matrices(_abi.DMUON_VIEW_MATRIX, (5, 5), 1)
    assert seen((10, 4), GateUp(layout="interleaved")) == Matrices(_abi.DMUON_VIEW_MATRIX, (1, 1), 5)


def test_experts_are_stacked_in_front_and_cut_along_their_own_rows():
    assert seen((6, 10, 4), "experts") == Matrices(_abi.DMUON_VIEW_EXPERTS)
    fused = seen((6, 10, 4), Experts(GateUp(layout="interleaved")))
    assert fused == Matrices(_abi.DMUON_VIEW_EXPERTS, (1, 1), 5)
    assert fused.count((6, 10, 4)) == 12


def test_rows_of_a_kernel_are_its_first_dimension():
    assert seen((8, 4, 3, 3), RowBlocks([6, 2]), nn.Conv2d(4, 8, 3)) == Matrices(_abi.DMUON_VIEW_FLATTEN, (6, 2), 1)
    assert seen((8, 4, 3, 3), "flatten") == Matrices(_abi.DMUON_VIEW_FLATTEN)


@pytest.mark.parametrize(("shape", "view", "complaint"), [
    # cases row 54: gated attention has a fourth block, of 2048 rows
    ((4608, 64), QKV(8, 1, 256), r"w \(4608, 64\): the row blocks of QKV\(.*\) sum to 2560 rows of 4608"),
    ((24, 4), RowBlocks([4, 2, 2], repeats=2), r"w \(24, 4\): .* sum to 16 rows of 24"),
    ((7, 4), GateUp(), "sum to 6 rows of 7"),
    ((7, 4), GateUp(layout="interleaved"), "sum to 6 rows of 7"),
    ((1, 4), GateUp(), "sum to 2 rows of 1"),
    ((6, 10, 4), Experts(QKV(1, 1, 4)), r"w \(6, 10, 4\): .* sum to 12 rows of 10"),
    ((6, 4), "experts", r"w \(6, 4\): view 'experts' needs at least 3 dimensions"),
])
def test_a_view_that_does_not_fit_names_tensor_sum_and_rows(shape, view, complaint):
    with pytest.raises(ValueError, match=complaint):
        seen(shape, view)


@pytest.mark.parametrize(("make", "complaint"), [
    (lambda: RowBlocks([4, 0]), "size of RowBlocks.* is 0; it must be a whole number above 0"),
    (lambda: RowBlocks([4.0]), "is 4.0"),
    (lambda: RowBlocks([]), "has no blocks"),
    (lambda: RowBlocks([4], repeats=0), "repeats of RowBlocks.* is 0"),
    (lambda: QKV(8, 3, 16), "8 query heads do not divide into 3 groups"),
    (lambda: QKV(8, 2, -1), "head_dim of QKV.* is -1"),
    (lambda: QKV(8, 2, 16, layout="fused"), "layout of QKV.* must be one of 'stacked', 'interleaved'"),
    (lambda: GateUp("rows"), "layout of GateUp.* must be one of"),
])
def test_a_view_that_means_nothing_is_refused_where_it_is_made(make, complaint):
    with pytest.raises(ValueError, match=complaint):
        make()
