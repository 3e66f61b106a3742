# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""How a tensor is seen as matrices, said of its *global* shape: each is orthogonalised and scaled on its own,
with state of its own, however the tensor is sharded. A view is what `Rule(view=...)` takes:

    "flatten"   one matrix, the first dimension against the rest; what kernels of nn.Conv1d..3d get by themselves
    "experts"   a stack: the last two dimensions are a matrix, those before them count matrices
    RowBlocks, QKV, GateUp   matrices that are fused into one along its rows
    Experts(QKV(...))        the same of every matrix of a stack
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

from torch import nn

from dmuon_client import _abi

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_LAYOUTS = ("stacked", "interleaved")


@dataclasses.dataclass(frozen=True)
class Matrices:
    """What the service is told: fields of dmuon_tensor."""

    view: int = _abi.DMUON_VIEW_MATRIX
    row_blocks: tuple[int, ...] = ()
    row_repeats: int = 1

    def count(self, shape: Sequence[int]) -> int:
        stack = math.prod(shape[:-2]) if self.view == _abi.DMUON_VIEW_EXPERTS else 1
        return stack * max(1, len(self.row_blocks))

    def units(self, shape: Sequence[int]) -> Iterator["Unit"]:
        """What the service owns as one piece, in its order: daemon/plan/units.h."""
        rows_at = len(shape) - 2 if self.view == _abi.DMUON_VIEW_EXPERTS else 0
        cols = math.prod(shape[rows_at + 1:])
        for stack in itertools.product(*map(range, shape[:rows_at])):
            begin, blocks = 0, self.row_blocks if self.row_repeats == 1 else ()
            for rows in blocks or (shape[rows_at],):
                inside = [rows] if self.row_repeats == 1 else [size * self.row_repeats for size in self.row_blocks]
                yield Unit([*stack, begin, *[0] * (len(shape) - rows_at - 1)],
                           [*[1] * rows_at, rows, *shape[rows_at + 1:]], [(of_one, cols) for of_one in inside])
                begin += rows


@dataclasses.dataclass(frozen=True)
class Unit:
    """A box of a tensor, and the matrices in it: more than one where their rows are interleaved."""

    offset: list[int]
    length: list[int]
    matrices: list[tuple[int, int]]


@dataclasses.dataclass(frozen=True)
class RowBlocks:
    """Blocks of `sizes` rows, `repeats` times one after the other. Block j is one matrix: with one repeat it lies
    in one piece, with more it is all rows whose index, modulo the sum of `sizes`, falls in it."""

    sizes: Sequence[int]
    repeats: int = 1

    def __post_init__(self) -> None:
        for what, value in [("repeats", self.repeats), *(("size", size) for size in self.sizes)]:
            _check_whole(f"{what} of {self}", value)
        if not self.sizes:
            raise ValueError(f"{self} has no blocks")

    def of(self, rows: int) -> "RowBlocks":
        """The blocks of a matrix of `rows` rows."""
        return self


@dataclasses.dataclass(frozen=True)
class QKV:
    """A fused attention projection with grouped query heads: three matrices, or one a head with `per_head`.

    `layout`: "stacked" is all of q, then k, then v; "interleaved" is, for each of `kv_heads` groups, the
    group's q heads, its k and its v, as Megatron stores it.
    """

    q_heads: int
    kv_heads: int
    head_dim: int
    layout: str = "stacked"
    per_head: bool = False

    def __post_init__(self) -> None:
        for what in ("q_heads", "kv_heads", "head_dim"):
            _check_whole(f"{what} of {self}", getattr(self, what))
        if self.q_heads % self.kv_heads:
            raise ValueError(f"{self}: {self.q_heads} query heads do not divide into {self.kv_heads} groups")
        _check_layout(self)

    def of(self, rows: int) -> RowBlocks:
        if self.per_head:
            return RowBlocks((self.head_dim,) * (self.q_heads + 2 * self.kv_heads))
        groups = self.kv_heads if self.layout == "interleaved" else 1
        q, kv = self.q_heads // groups * self.head_dim, self.kv_heads // groups * self.head_dim
        return RowBlocks((q, kv, kv), groups)


@dataclasses.dataclass(frozen=True)
class GateUp:
    """The gate and up projections of a gated feed-forward layer in one. `layout`: "stacked" is all of one, then
    all of the other; "interleaved" is row by row."""

    layout: str = "stacked"

    def __post_init__(self) -> None:
        _check_layout(self)

    def of(self, rows: int) -> RowBlocks:
        half = max(1, rows // 2)
        return RowBlocks((1, 1), half) if self.layout == "interleaved" else RowBlocks((half, half))


Rows = RowBlocks | QKV | GateUp


@dataclasses.dataclass(frozen=True)
class Experts:
    """A stack of matrices, each of which is cut into `rows`."""

    rows: Rows | None = None


View = str | Rows | Experts
_WORDS: dict[str, View | None] = {"flatten": None, "experts": Experts()}


def check(view: View) -> None:
    """ValueError unless it is one."""
    if not (view in _WORDS if isinstance(view, str) else isinstance(view, Rows | Experts)):
        raise ValueError(f"view is {view!r}; it must be 'flatten', 'experts', a RowBlocks, QKV, GateUp or Experts")


def matrices_of(name: str, shape: Sequence[int], module: nn.Module, view: View | None) -> Matrices:
    """How `name`, of the whole shape `shape` and held by `module`, is seen. ValueError naming it where that is not
    clear, or does not fit its shape."""
    flat = view == "flatten" or isinstance(module, CONVOLUTIONS)
    seen = _WORDS[view] if isinstance(view, str) else view
    what = f"{name} {tuple(shape)}"
    if isinstance(seen, Experts):
        if len(shape) < 3:
            raise ValueError(f"{what}: view {view!r} needs at least 3 dimensions")
        kind, rows, blocks = _abi.DMUON_VIEW_EXPERTS, shape[-2], seen.rows
    elif flat:
        kind, rows, blocks = _abi.DMUON_VIEW_FLATTEN, shape[0], seen
    elif len(shape) > 2:
        raise ValueError(f"{what} may be a stack of matrices or a kernel: say view='experts', dmuon.Experts(...) or 'flatten'")
    else:
        kind, rows, blocks = _abi.DMUON_VIEW_MATRIX, shape[0], seen
    if blocks is None:
        return Matrices(kind)
    cut = blocks.of(rows)
    total = sum(cut.sizes) * cut.repeats
    if total != rows:
        raise ValueError(f"{what}: the row blocks of {blocks} sum to {total} rows of {rows}")
    return Matrices(kind, tuple(cut.sizes), cut.repeats)


def _check_whole(what: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{what} is {value!r}; it must be a whole number above 0")


def _check_layout(view: QKV | GateUp) -> None:
    if view.layout not in _LAYOUTS:
        raise ValueError(f"layout of {view} must be one of {', '.join(map(repr, _LAYOUTS))}")
