# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""Boxes follow torch.chunk and cover a tensor exactly. No daemon and no process group needed."""

import pytest
import torch
from dmuon_client.sharding import ShardingError, chunk, holds
from torch import nn


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 7, 10, 18, 48, 72])
@pytest.mark.parametrize("parts", [1, 2, 3, 4, 8, 16])
def test_chunk_is_torch_chunk(size, parts):
    # cases rows 1, 4, 12
    pieces = [len(p) for p in torch.empty(size).chunk(parts)] if size else []
    pieces += [0] * (parts - len(pieces))
    found = [chunk(size, parts, i) for i in range(parts)]
    assert [length for _, length in found] == pieces
    starts = [sum(pieces[:i]) for i in range(parts)]
    assert all(offset == start for (offset, length), start in zip(found, starts, strict=True) if length)
    assert all(offset + length <= size for offset, length in found)


def test_eighteen_rows_over_eight_ranks_leave_two_empty():
    # cases row 1
    assert [chunk(18, 8, i)[1] for i in range(8)] == [3] * 6 + [0] * 2


def plain(shape=(4, 3)) -> nn.Parameter:
    return nn.Parameter(torch.zeros(shape))


def test_one_process_holds_the_whole():
    holding = holds("w", plain(), world_size=1, replicated=False, reduced=None)
    assert (holding.shape, holding.offset, holding.length) == ((4, 3), (0, 0), (4, 3))


def test_scalar_counts_as_one_element():
    holding = holds("w", plain(()), world_size=1, replicated=False, reduced=None)
    assert (holding.shape, holding.length) == ((1,), (1,))


def test_replicas_of_ddp_are_whole_and_reduced():
    holding = holds("w", plain(), world_size=4, replicated=True, reduced=None)
    assert holding.length == (4, 3) and holding.reduced


def test_plain_parameter_of_many_workers_needs_the_users_word():
    # cases row 22: never guess whether a gradient is the mean or a local part
    with pytest.raises(ShardingError, match="w is a plain parameter, one of 2 workers"):
        holds("w", plain(), world_size=2, replicated=False, reduced=None)
    assert holds("w", plain(), world_size=2, replicated=False, reduced=True).reduced
    assert not holds("w", plain(), world_size=2, replicated=False, reduced=False).reduced
