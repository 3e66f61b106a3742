# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""What this worker holds of a parameter, as a box of the whole tensor. Public PyTorch API only."""

import dataclasses

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.nn.parallel import DistributedDataParallel


class ShardingError(ValueError):
    """A layout that the client cannot describe; the message names the parameter."""


@dataclasses.dataclass(frozen=True)
class Holding:
    """The box [offset, offset + length) that this worker holds, and whether its gradient is reduced."""

    shape: tuple[int, ...]  # of the whole tensor; a scalar counts as one element in one dimension
    offset: tuple[int, ...]
    length: tuple[int, ...]
    reduced: bool

    @property
    def empty(self) -> bool:
        return 0 in self.length


def chunk(size: int, parts: int, index: int) -> tuple[int, int]:
    """(offset, length) of piece `index` of `size` split as torch.chunk does: ceil-sized pieces, the
    last one shorter, later ones empty."""
    step = -(-size // parts)
    start = min(index * step, size)
    return start, min(step, size - start)


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """The worker's own piece; shares memory with `tensor`. Call it without autograd."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def placements(tensor: torch.Tensor) -> tuple[Placement, ...] | None:
    """Where the pieces of a distributed tensor lie; None for a plain one."""
    return tensor.placements if isinstance(tensor, DTensor) else None


def holds(name: str, param: nn.Parameter, *, world_size: int, replicated: bool,
          reduced: bool | None, job_mesh: DeviceMesh | None = None) -> Holding:
    """What this worker holds of `param`. `replicated`: it lies inside DistributedDataParallel.
    `reduced`: the user's word on gradients of plain parameters, None if there is none. `job_mesh`: all
    workers of the job, where parameters are distributed over a part of them only."""
    if isinstance(param, DTensor):
        return _holds_dtensor(name, param, world_size, job_mesh)
    shape = tuple(param.shape) or (1,)
    if world_size == 1 or replicated:
        is_reduced = True
    elif reduced is None:
        raise ShardingError(
            f"{name} is a plain parameter, one of {world_size} workers has it, and it is inside neither "
            "DistributedDataParallel nor fully_shard: say reduced=True if your code averages "
            "gradients over the workers before step(), reduced=False if the service shall"
        )
    else:
        is_reduced = reduced
    return Holding(shape, (0,) * len(shape), shape, is_reduced)


def _holds_dtensor(name: str, param: DTensor, world_size: int, job_mesh: DeviceMesh | None) -> Holding:
    mesh = param.device_mesh
    everywhere = mesh.size() == world_size
    if not everywhere and (job_mesh is None or world_size % mesh.size() != 0):
        raise ShardingError(
            f"{name} lies on a device mesh of {mesh.size()} workers, but the job has {world_size}. Where "
            "the mesh is one replica of several, give the whole mesh as mesh=; the service then takes the "
            "mean of the gradients over the replicas"
        )
    if job_mesh is not None and job_mesh.size() != world_size:
        raise ShardingError(f"mesh= has {job_mesh.size()} workers, but the job has {world_size}")
    shape = tuple(param.shape) or (1,)
    offset, length = [0] * len(shape), list(shape)
    for dim, placement in enumerate(param.placements):  # each splits what the ones before have left
        if type(placement) is Shard:
            d = placement.dim % len(shape)
            start, length[d] = chunk(length[d], mesh.size(dim), mesh.get_local_rank(dim))
            offset[d] += start
        elif type(placement) is not Replicate:
            raise ShardingError(f"{name} has placement {placement}; only Shard and Replicate are supported")
    with torch.no_grad():
        local = tuple(local_part(param).shape) or (1,)
    if 0 in local and 0 in length:
        local = tuple(length)  # an empty piece has no place; its other dimensions do not matter
    if local != tuple(length):
        raise ShardingError(
            f"{name} {shape} at {mesh.get_coordinate()} of the mesh holds {local}, but "
            f"{param.placements} over {tuple(mesh.shape)} workers gives {tuple(length)}"
        )
    return Holding(shape, tuple(offset), tuple(length), reduced=everywhere)


def replicated_parameters(model: nn.Module) -> set[int]:
    """ids of the parameters whose gradients a DistributedDataParallel module averages."""
    found: set[int] = set()
    for module in model.modules():
        if isinstance(module, DistributedDataParallel):
            found.update(id(p) for p in module.module.parameters())
    return found
