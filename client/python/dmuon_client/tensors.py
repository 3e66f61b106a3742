# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""A parameter as the service knows it, and what a gradient must look like to be its."""

import dataclasses

import torch
from torch import nn
from torch.distributed.tensor import Placement

from dmuon_client import routing, sharding


@dataclasses.dataclass
class Tensor:
    """The buffers are views of the arena."""

    route: routing.Route
    holding: sharding.Holding
    # As they were at registration.
    local_shape: torch.Size
    dtype: torch.dtype
    placements: tuple[Placement, ...] | None
    param: nn.Parameter = dataclasses.field(init=False)
    grad_buffer: torch.Tensor | None = None
    param_buffer: torch.Tensor | None = None

    def __post_init__(self) -> None:
        self.param = self.route.param


def description(grad: torch.Tensor | None, piece: torch.Tensor | None) -> tuple | None:
    """Equal for gradients that are alike; `piece` is this worker's."""
    if grad is None:
        return None
    return piece.shape, piece.dtype, piece.layout, None if piece is grad else grad.placements


def difference(t: Tensor, grad: torch.Tensor, piece: torch.Tensor) -> str:
    """How a gradient differs from what was registered, naming the tensor."""
    name = t.route.name
    if grad.layout is not torch.strided:
        return f"the gradient of {name} is {grad.layout}; only dense gradients are supported"
    if grad.dtype != t.dtype:
        return f"the gradient of {name} is {grad.dtype}, its parameter {t.dtype}"
    if sharding.placements(grad) != t.placements:
        return (f"the gradient of {name} is placed as {sharding.placements(grad)}, its parameter as "
                f"{t.placements}")
    return (f"the gradient of {name} has local shape {tuple(piece.shape)}, its parameter had "
            f"{tuple(t.local_shape)} at registration")
