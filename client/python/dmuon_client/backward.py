# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""backward_passes_per_step: gradients are handed over while backward still computes others.

PyTorch calls a parameter's post-accumulate hook when its gradient is complete for this backward pass: with
FSDP2 after the reduce-scatter, and the all-reduce of a 2-D mesh. In the last pass of a step the hook hands the
gradient over.
"""

import functools
from collections.abc import Callable, Mapping

import torch
from torch import nn


class Backward:
    """Which gradients of the next step have been handed over."""

    def __init__(self, params: Mapping[int, nn.Parameter], passes: int, hand_over: Callable[[int], bool]) -> None:
        """`hand_over(i)` copies and submits the gradient of `params[i]`; False when it could not."""
        self._passes = passes
        self._hand_over = hand_over
        self._seen: dict[int, int] = {}  # passes since the last step
        self._handed: set[int] = set()
        self._handles = [param.register_post_accumulate_grad_hook(functools.partial(self._after, i))
                         for i, param in params.items()]

    def take(self) -> set[int]:
        """What has been handed over. A new step begins: then nothing has."""
        handed, self._handed, self._seen = self._handed, set(), {}
        return handed

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    @torch.no_grad()
    def _after(self, i: int, _: nn.Parameter) -> None:
        self._seen[i] = self._seen.get(i, 0) + 1
        if self._seen[i] == self._passes and self._hand_over(i):
            self._handed.add(i)
