# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""State in torch's layout and back, and the parts that it travels in. No service needed."""

import math
import os

import pytest
import torch
from dmuon_client import _abi, checkpoint, part, views
from dmuon_client.options import VARIANTS, Options
from safetensors import safe_open


def counting(*shape: int) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape) / 3


# -- conversions -----------------------------------------------------------------------------------

CONTENTS = {
    "muon(ema)": {"momentum": counting(6, 4)},
    "adamw": {"momentum": counting(7), "second_moment": counting(7) + 1},
    "normuon(ema)": {"momentum": counting(6, 4), "second_moment": [counting(2, 1), counting(4, 1)]},
    "adamuon(accumulate)": {"momentum": counting(6, 4), "second_moment": counting(6, 4) + 1},
    "muon2_factored(accumulate)": {"momentum": counting(6, 4), "second_moment": [counting(6, 1)],
                                   "column_moment": [counting(1, 4)]},
    "mona(accumulate)": {"momentum": counting(6, 4), "slow_gradient": counting(6, 4) + 2},
    "dion2(accumulate)": {"momentum": counting(6, 4)},
    "numuon(ema)": {"momentum": counting(6, 4), "basis": [counting(2, 4)]},
}


def equal(one, other) -> bool:
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(equal, one, other))
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


@pytest.mark.parametrize("optimizer", CONTENTS)
def test_a_state_comes_back_from_torchs_layout_bit_for_bit(optimizer):
    contents = {"optimizer": optimizer, "updates": 5, "weight": counting(6, 4), **CONTENTS[optimizer]}
    state = checkpoint.layout_of(contents, 0.9)
    back = checkpoint.contents_from(state, optimizer, 5, 0.9)
    assert back.keys() == contents.keys() - {"weight"}
    assert all(equal(back[key], contents[key]) for key in back)


def test_a_sum_comes_back_but_for_a_rounding():
    contents = {"optimizer": "muon(accumulate)", "updates": 5, "momentum": counting(6, 4)}
    for momentum in (0.0, 0.5, 0.9, 0.95, 0.99):
        state = checkpoint.layout_of(contents, momentum)
        assert state.keys() == {"momentum_buffer"}
        torch.testing.assert_close(state["momentum_buffer"], (1 - momentum) * counting(6, 4))
        back = checkpoint.contents_from(state, "muon(accumulate)", 5, momentum)
        torch.testing.assert_close(back["momentum"], counting(6, 4), rtol=2**-22, atol=0)


@pytest.mark.parametrize(("optimizer", "state", "complaint"), [
    ("muon(ema)", {}, r"muon\(ema\) keeps momentum_buffer: momentum_buffer is missing"),
    ("muon(ema)", {"momentum_buffer": 1, "exp_avg": 1}, "exp_avg has no place in it"),
    ("adamw", {"exp_avg": 1, "exp_avg_sq": 1}, "adamw keeps exp_avg, exp_avg_sq, step: step is missing"),
    ("adamw", {"exp_avg": 1, "exp_avg_sq": 1, "step": float("nan")}, "step is nan"),
    ("adamw", {"exp_avg": 1, "exp_avg_sq": 1, "step": float("inf")}, "step is inf"),
    ("adamw", {"exp_avg": 1, "exp_avg_sq": 1, "step": -1}, "step is -1"),
    ("normuon(ema)", {"momentum": 1, "weight": 1}, "weight has no place in it"),
])
def test_what_does_not_fit_an_optimizer_is_named(optimizer, state, complaint):
    with pytest.raises(ValueError, match=complaint):
        checkpoint.contents_from(state, optimizer, 3, 0.9)


def test_torchs_muon_does_not_say_how_often_it_has_stepped():
    assert checkpoint.contents_from({"momentum_buffer": 1}, "muon(ema)", 3, 0.9)["updates"] == 3
    assert checkpoint.contents_from({"momentum": 1, "step": torch.tensor(2.0)}, "dion2(accumulate)", 3, 0.9)["updates"] == 2


def test_optimizers_have_the_names_that_the_service_gives_them():
    names = {variant: Options(variant=variant).optimizer("muon") for variant in VARIANTS}
    assert names["muon"] == "muon(ema)" and names["muon2"] == "muon2(accumulate)" and names["normuon"] == "normuon(ema)"
    assert Options(momentum_form="accumulate").optimizer("muon") == "muon(accumulate)"
    assert Options().optimizer("adamw") == "adamw"


# -- what the service owns as one piece ------------------------------------------------------------

@pytest.mark.parametrize(("shape", "matrices", "units"), [
    ((6, 4), views.Matrices(), [([0, 0], [6, 4], [(6, 4)])]),
    ((6, 2, 3), views.Matrices(_abi.DMUON_VIEW_FLATTEN), [([0, 0, 0], [6, 2, 3], [(6, 6)])]),
    ((2, 6, 4), views.Matrices(_abi.DMUON_VIEW_EXPERTS), [([0, 0, 0], [1, 6, 4], [(6, 4)]), ([1, 0, 0], [1, 6, 4], [(6, 4)])]),
    ((6, 4), views.Matrices(row_blocks=(1, 5)), [([0, 0], [1, 4], [(1, 4)]), ([1, 0], [5, 4], [(5, 4)])]),
    ((12, 4), views.Matrices(row_blocks=(2, 1, 1), row_repeats=3), [([0, 0], [12, 4], [(6, 4), (3, 4), (3, 4)])]),
    ((2, 6, 4), views.Matrices(_abi.DMUON_VIEW_EXPERTS, (2, 4)), [
        ([0, 0, 0], [1, 2, 4], [(2, 4)]), ([0, 2, 0], [1, 4, 4], [(4, 4)]),
        ([1, 0, 0], [1, 2, 4], [(2, 4)]), ([1, 2, 0], [1, 4, 4], [(4, 4)])]),
])
def test_a_view_is_cut_into_units_as_the_service_does(shape, matrices, units):
    found = [(unit.offset, unit.length, unit.matrices) for unit in matrices.units(shape)]
    assert found == units
    assert sum(math.prod(length) for _, length, _ in found) == math.prod(shape)
    assert sum(len(inside) for _, _, inside in found) == matrices.count(shape)


# -- parts -----------------------------------------------------------------------------------------

ABOUT = {"job": "run", "name": "state", "step": "5", "generation": "1", "node": "client", "dmuon_version": "0.1.0"}


def entry(tensor, quantity, shape, *, offset=None, length=None, matrix=-1):
    return part.Entry(tensor, list(shape), "muon(ema)", 5, quantity, offset or [0] * len(shape), length or list(shape), matrix)


ARRAYS = [((entry("w", "weight", (6, 4)), (6, 4)), counting(6, 4)),
          ((entry("w", "second_moment", (6, 4), matrix=0), (6, 1)), counting(6, 1).bfloat16()),
          ((entry("f", "momentum", (6, 4), offset=[2, 0], length=[4, 4]), (4, 4)), counting(4, 8)[:, ::2]),
          ((entry("s", "weight", (1,)), (1,)), torch.tensor(3.0)), ((entry("e", "weight", (0, 3)), (0, 3)), torch.empty(0, 3))]


@pytest.fixture
def written(tmp_path):
    """(path, digest) of ARRAYS."""
    path = tmp_path / "part.safetensors"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        return path, part.write(fd, ABOUT, [array for array, _ in ARRAYS], (values for _, values in ARRAYS))
    finally:
        os.close(fd)


def test_a_part_is_read_as_it_was_written(written):
    path, digest = written
    data = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
    found = part.read(data)
    assert len(digest) == 64
    for (read, values), ((wanted, shape), tensor) in zip(found, ARRAYS, strict=True):
        assert (read.key, read.updates, read.matrix) == (wanted.key, 5, wanted.matrix)
        assert torch.equal(values, tensor.float().reshape(shape))
    assert [read.key for read, _ in found] == ["w/weight", "w/second_moment#0", "f/momentum[2:6, 0:4]", "s/weight", "e/weight"]


def test_a_part_is_a_safetensors_file_as_checkpoints_have_them(written):
    with safe_open(written[0], framework="pt") as file:
        assert set(file.keys()) == {wanted.key for (wanted, _), _ in ARRAYS}
        assert torch.equal(file.get_tensor("w/weight"), counting(6, 4))
        assert file.metadata()["format"] == "dmuon-1"


@pytest.mark.parametrize("cut", [0, 5, 60, 2000])
def test_what_is_no_part_is_refused(written, cut):
    data = torch.frombuffer(bytearray(written[0].read_bytes()), dtype=torch.uint8)
    with pytest.raises(ValueError, match="no part of a checkpoint"):
        part.read(data[:cut])
