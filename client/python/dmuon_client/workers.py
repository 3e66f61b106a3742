# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""Who the workers of a job are, and what the job is called."""

import os
import secrets
from typing import Any

import torch
import torch.distributed as dist

_PIECE_BYTES = 64 << 20


def rank_and_world_size() -> tuple[int, int]:
    """Of torch.distributed; (0, 1) without it. RuntimeError where a launcher announced more workers."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    announced = int(os.environ.get("WORLD_SIZE", "1"))
    if announced > 1:
        raise RuntimeError(
            f"WORLD_SIZE is {announced}, but torch.distributed has no process group: call "
            "init_process_group before dmuon.Muon"
        )
    return 0, 1


def job_id(chosen: str | None, rank: int, world_size: int, verbose: bool) -> str:
    """The argument, else DMUON_JOB, else torchrun's run id, else a fresh one that rank 0 draws."""
    elastic = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    known = chosen or os.environ.get("DMUON_JOB") or (elastic if elastic != "none" else None)
    if known:
        return known
    drawn = [f"job-{secrets.token_hex(6)}" if rank == 0 else None]
    if world_size > 1:
        dist.broadcast_object_list(drawn, src=0)
    if verbose and rank == 0:
        print(f"dmuon: no job id was given, so this run is {drawn[0]}. To keep optimizer state over a "
              "restart of the trainer, give job=..., DMUON_JOB or torchrun --rdzv-id", flush=True)
    return drawn[0]


def send_bytes(data: torch.Tensor | None, size: int, source: int, to: int | None, group: Any) -> torch.Tensor | None:
    """`data` of rank `source`, bytes in host memory, to rank `to`, or to all (None); all workers call. None where it does
    not go. In pieces, so that no more than one is on its way."""
    rank = dist.get_rank()
    if rank not in (source, to) and to is not None:
        return None
    if data is None:
        data = torch.empty(size, dtype=torch.uint8)
    for piece in data.split(_PIECE_BYTES):
        if to is None:
            dist.broadcast(piece, source, group=group)
        elif rank == source != to:
            dist.send(piece, to, group=group)
        elif rank != source:
            dist.recv(piece, source, group=group)
    return data if to in (None, rank) else None
