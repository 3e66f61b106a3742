# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""A parameter as the service knows it, and what a gradient must look like to be its."""

import dataclasses

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Placement

from dmuon_client import options as opts, routing, sharding
from dmuon_client.session import dtype_code


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


def describe(model: nn.Module, routes: list[routing.Route], options: opts.Options, world_size: int) -> list[Tensor]:
    """What this worker holds of each route's parameter. TypeError or ValueError naming one that the service does not take."""
    replicated = sharding.replicated_parameters(model)
    described = []
    for route in routes:
        dtype_code(route.name, route.param.dtype)
        if options.backward_passes_per_step and world_size > 1:
            _check_backward(route, replicated, options)
        holding = sharding.holds(route.name, route.param, world_size=world_size, replicated=id(route.param) in replicated,
                                 reduced=options.reduced, job_mesh=options.mesh)
        with torch.no_grad():
            shape = sharding.local_part(route.param).shape
        described.append(Tensor(route, holding, shape, route.param.dtype, sharding.placements(route.param)))
    return described


def _check_backward(route: routing.Route, replicated: set[int], options: opts.Options) -> None:
    """ValueError where gradients are reduced by others, but after the hooks."""
    later = id(route.param) in replicated or options.reduced
    if later and not isinstance(route.param, DTensor):
        who = "DistributedDataParallel" if id(route.param) in replicated else "your code (reduced=True)"
        raise ValueError(f"backward_passes_per_step: the gradient of {route.name} is complete before {who} has averaged it")


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
