# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""QK-clip (Kimi K2, arXiv 2507.20534): after a step, the query and key weights of heads whose attention logits were
larger than a threshold shrink, so that the largest logit would have been the threshold."""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from dmuon_client.session import RowFactors


@dataclasses.dataclass(frozen=True)
class QKClip:
    """Which weights are queries and keys of attention, and how they are clipped. A step then needs `qk_max`.

    Weights are named by `query` and `key`, or by `fused` where one has the rows of queries, then keys, then values.
    "*" stands for the same text in both: query="blocks.*.q.weight", key="blocks.*.k.weight". Rows belong to head
    after head; biases beside the weights go with them.

    Of a head with the largest logit s > tau the query rows are multiplied by (tau/s)^alpha, the key rows by
    (tau/s)^(1-alpha). Where query heads share a key head, its factor is that of the largest s among them: no head's
    logits stay above tau, and those of its neighbours shrink with it.
    """

    heads: int  # of queries
    query: str | None = None
    key: str | None = None
    fused: str | None = None
    kv_heads: int | None = None  # heads / kv_heads queries share a key head; None: one each
    tau: float = 100.0
    alpha: float = 0.5  # 1: queries only

    def validate(self) -> None:
        if (self.fused is None) == (self.query is None or self.key is None) or (self.fused and (self.query or self.key)):
            raise ValueError(f"{self}: give query and key, or fused")
        if not isinstance(self.heads, int) or self.heads < 1 or self.key_heads < 1 or self.heads % self.key_heads:
            raise ValueError(f"{self}: heads must be a multiple of kv_heads, and both at least 1")
        if not (0.0 < self.tau < math.inf) or not 0.0 <= self.alpha <= 1.0:
            raise ValueError(f"{self}: tau must be above 0, and alpha in [0, 1]")

    @property
    def key_heads(self) -> int:
        return self.heads if self.kv_heads is None else self.kv_heads


@dataclasses.dataclass(frozen=True)
class _Rows:
    tensor: int  # of the session
    first_row: int
    head_dim: int
    of_keys: bool


@dataclasses.dataclass(frozen=True)
class Attention:
    """The weights of one attention. `name` is that of its query weight, or of the fused one."""

    name: str
    clip: QKClip
    rows: list[_Rows]

    def factors(self, maxima: Sequence[float]) -> list[RowFactors]:
        """For the largest logit of each query head; of tensors that need any."""
        clip, shared = self.clip, self.clip.heads // self.clip.key_heads
        ratios = [min(1.0, clip.tau / s) if s > 0.0 else 1.0 for s in maxima]
        queries = [_power(r, clip.alpha) for r in ratios]
        keys = [_power(min(ratios[i:i + shared]), 1.0 - clip.alpha) for i in range(0, clip.heads, shared)]
        found = [RowFactors(r.tensor, r.first_row, r.head_dim, keys if r.of_keys else queries) for r in self.rows]
        return [f for f in found if any(factor != 1.0 for factor in f.factors)]


def _power(base: float, exponent: float) -> float:
    # 12 digits: the last bit may differ between workers' C libraries, and they must agree.
    return math.sqrt(base) if exponent == 0.5 else float(f"{base**exponent:.12g}")


def resolve(clips: Sequence[QKClip], tensors: Mapping[str, tuple[int, Sequence[int]]]) -> list[Attention]:
    """The attentions that `clips` name among `tensors`: name -> (number in the session, shape). ValueError naming
    what does not fit."""
    found: dict[str, Attention] = {}
    for clip in clips:
        pattern = clip.fused or clip.query
        matches = [(name, m) for name in tensors if (m := re.fullmatch(re.escape(pattern).replace(r"\*", "(.*)"), name))]
        if not matches:
            raise ValueError(f"{clip}: no tensor that the service holds is called {pattern!r}")
        for name, match in matches:
            if name in found:
                raise ValueError(f"{clip}: {name} is clipped already")
            found[name] = Attention(name, clip, _rows_of(clip, name, match.groups(), tensors))
    return list(found.values())


def _rows_of(clip: QKClip, query: str, texts: Sequence[str], tensors: Mapping[str, tuple[int, Sequence[int]]]) -> list[_Rows]:
    height = tensors[query][1][0]
    all_heads = clip.heads + 2 * clip.key_heads if clip.fused else clip.heads
    head_dim, rest = divmod(height, all_heads)
    if rest or not head_dim:
        raise ValueError(f"{clip}: {query} has {height} rows, which {all_heads} heads cannot share")
    places = [(query, 0, False)]
    if clip.fused:
        places.append((query, clip.heads * head_dim, True))
    else:
        parts = iter(texts)
        key = re.sub(r"\*", lambda _: next(parts, "*"), clip.key)
        if key not in tensors:
            raise ValueError(f"{clip}: the service holds no {key}, the keys of {query}")
        if tensors[key][1][0] != clip.key_heads * head_dim:
            raise ValueError(f"{clip}: {key} has {tensors[key][1][0]} rows; it must have {clip.key_heads} heads of {head_dim}")
        places.append((key, 0, True))
    rows = []
    for name, first_row, of_keys in places:
        with_bias = (name, name.removesuffix("weight") + "bias") if name.endswith("weight") else (name,)
        rows += [_Rows(tensors[n][0], first_row, head_dim, of_keys) for n in with_bias
                 if n in tensors and tensors[n][1][0] == tensors[name][1][0]]
    return rows


def row_factors(attentions: Sequence[Attention], qk_max: Mapping[str, Any] | None, world_size: int) -> list[RowFactors]:
    """What a step multiplies for these maxima, the largest over all workers: a collective of torch.distributed.

    ValueError on every worker when one has none for an attention, or one that is negative or not finite.
    """
    if not attentions:
        if qk_max:
            raise ValueError("qk_max was given, but the optimizer has no qk_clip")
        return []
    try:
        mine: list[list[float]] | str = [_checked(a, qk_max or {}) for a in attentions]
        if unknown := sorted(set(qk_max) - {a.name for a in attentions}):
            raise ValueError(f"qk_max names {', '.join(unknown)}, which no qk_clip does")
    except ValueError as error:
        mine = str(error)
    answers = [mine]
    if world_size > 1:
        answers = [None] * world_size
        dist.all_gather_object(answers, mine)
    for rank, answer in enumerate(answers):
        if isinstance(answer, str):
            raise ValueError(answer if world_size == 1 else f"rank {rank}: {answer}")
    found = []
    for attention, *of_ranks in zip(attentions, *answers, strict=True):
        found += attention.factors([max(of_head) for of_head in zip(*of_ranks, strict=True)])
    return found


def _checked(attention: Attention, qk_max: Mapping[str, Any]) -> list[float]:
    if attention.name not in qk_max:
        raise ValueError(f"qk_max has nothing for {attention.name}; every step needs the maxima of every attention")
    maxima = torch.as_tensor(qk_max[attention.name]).detach().double().flatten().tolist()
    if len(maxima) != attention.clip.heads:
        raise ValueError(f"qk_max of {attention.name} has {len(maxima)} numbers; it must have {attention.clip.heads}, one a head")
    for head, value in enumerate(maxima):
        if not 0.0 <= value < math.inf:
            raise ValueError(f"qk_max of {attention.name}, head {head}, is {value}; it must be finite and at least 0")
    return maxima
