# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""What the workers of the tests run: a small language model trained through the service, the same
in plain PyTorch, and a bag of parameters whose gradients the test dictates."""

from collections.abc import Callable, Mapping
from typing import Any

import dmuon_client as dmuon
import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from plain_muon import PlainPair
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn.parallel import DistributedDataParallel

Params = dict[str, np.ndarray]
HYPERS = {"lr": 0.02, "weight_decay": 0.1, "adamw": {"lr": 3e-3, "weight_decay": 0.05}}


class Block(nn.Module):
    """29 rows do not divide by 2 or 3; `narrow` has fewer rows than 3 ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(12)
        self.up = nn.Linear(12, 29)
        self.down = nn.Linear(29, 12, bias=False)
        self.narrow = nn.Linear(12, 2, bias=False)
        self.wide = nn.Linear(2, 12, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + self.down(F.gelu(self.up(y))) + self.wide(torch.tanh(self.narrow(y)))


class Small(nn.Module):
    MATRICES = 8  # that go to Muon

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(17, 12)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(12, 17, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def is_matrix(name: str) -> bool:
    return name.startswith("blocks.") and name.endswith(("up.weight", "down.weight", "narrow.weight",
                                                         "wide.weight"))


def make_small(tied: bool, dtype: torch.dtype) -> Small:
    torch.manual_seed(7)
    return Small(tied).to(dtype)


def tokens_of(step: int) -> torch.Tensor:
    """The whole batch of a step: 12 rows, so that it divides by 1, 2 and 3 workers."""
    generator = torch.Generator().manual_seed(1000 + step)
    return torch.randint(17, (12, 9), generator=generator)


def backward(model: nn.Module, rows: torch.Tensor, micro_batches: int = 1) -> None:
    for part in rows.chunk(micro_batches):
        logits = model(part[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), part[:, 1:].flatten())
        (loss / micro_batches).backward()


def mesh_of(replicas: int) -> DeviceMesh:
    """All workers: (replicate, shard), or (shard,) where there is one replica."""
    workers = dist.get_world_size()
    if replicas == 1:
        return init_device_mesh("cpu", (workers,))
    return init_device_mesh("cpu", (replicas, workers // replicas), mesh_dim_names=("replicate", "shard"))


def wrap(model: Small, parallel: str, whole: DeviceMesh | None = None) -> nn.Module:
    """`parallel`: "one", "ddp", "plain" (data parallel without an all-reduce), "zero2", "zero3" over all of
    `whole`, "shards" over its shard dimension only, "owned" as zero3 with the matrices left to the service:
    FSDP neither shards nor reduces them."""
    if parallel in ("one", "plain"):
        return model
    if parallel == "ddp":
        return DistributedDataParallel(model)
    mesh = whole if whole is not None else mesh_of(1)
    if parallel == "shards":
        mesh = mesh["shard"]
    reshard = parallel != "zero2"
    ignored = {p for name, p in model.named_parameters() if is_matrix(name)} if parallel == "owned" else None
    for block in model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=reshard, ignored_params=ignored)
    fully_shard(model, mesh=mesh, reshard_after_forward=reshard, ignored_params=ignored)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
    return model


@torch.no_grad()
def whole_params(model: nn.Module) -> Params:
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    found = {}
    for name, p in inner.named_parameters():
        whole = p.full_tensor() if isinstance(p, DTensor) else p
        found[name] = whole.detach().float().numpy().copy()
    return found


def train(rank: int, world_size: int, address: str | list[str], job: str, *, parallel: str = "zero3",
          replicas: int = 1, steps: int = 30, tied: bool = False, micro_batches: int = 1, lr_factors: bool = False,
          dtype: torch.dtype = torch.float32, before_step: Callable[[int], None] | None = None,
          whole_history: bool = True, load: str | None = None, saves: Mapping[int, str] | None = None,
          hypers: Mapping[str, Any] = HYPERS) -> dict[str, Any]:
    """Trains through the service; returns whole parameters after each step (or the last one) and
    what it reported. `address`: of the daemon, or of each rank's. `load`: a checkpoint to begin with; `saves`: names
    of those to make, by step."""
    whole = mesh_of(replicas) if parallel in ("zero2", "zero3", "shards", "owned") else None
    model = wrap(make_small(tied, dtype), parallel, whole)
    history = []
    keywords = dict(hypers)
    if parallel == "shards":
        keywords["mesh"] = whole
    if parallel in ("plain", "owned"):
        keywords["reduced"] = False
    where = address if isinstance(address, str) else address[rank]
    with dmuon.Muon(model, job=job, address=where, verbose=False, **keywords) as opt:
        scheduler = torch.optim.lr_scheduler.LambdaLR(opt, lr_factor) if lr_factors else None
        loaded = load_whole(opt, model, load)
        resumed_at = opt.last_step
        for step in range(resumed_at, steps):
            opt.zero_grad()
            backward(model, tokens_of(step).chunk(world_size)[rank], micro_batches)
            if before_step:
                before_step(step)
            opt.step()
            if saves and step + 1 in saves:
                opt.save(saves[step + 1])
            if scheduler:
                scheduler.step()
            if whole_history or step == steps - 1:
                opt.wait()  # whole_params reads past every hook
                history.append(whole_params(model))
        return {"params": history, "calls": opt.result.newton_schulz_calls, "routes": opt.routes(),
                "units": opt.plan.matrix_units, "resumed_at": resumed_at, "loaded": loaded}


def load_whole(opt: dmuon.Muon, model: nn.Module, name: str | None) -> Params | None:
    """Loads a checkpoint, if there is a name; the parameters that it brought."""
    if name is None:
        return None
    opt.load(name)
    return whole_params(model)


def lr_factor(step: int) -> float:
    return 1.0 / (1.0 + step)


def train_plain(*, steps: int = 30, tied: bool = False, lr_factors: bool = False,
                hypers: Mapping[str, Any] = HYPERS, **muon: Any) -> list[Params]:
    """The same on one process without the service."""
    model = make_small(tied, torch.float32)
    optimizer = PlainPair(model, is_matrix, **hypers, **muon)
    history = []
    for step in range(steps):
        optimizer.zero_grad()
        backward(model, tokens_of(step))
        if lr_factors:
            optimizer.set_lr_factor(lr_factor(step))
        optimizer.step()
        history.append(whole_params(model))
    return history


def difference(left: Params, right: Params) -> float:
    """max over tensors of |a - b| / |b|."""
    assert left.keys() == right.keys(), left.keys() ^ right.keys()
    return max(float(np.linalg.norm(left[n].astype(np.float64) - b) / np.linalg.norm(b))
               for n, b in right.items())


def bits(params: Params) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in params.items()}


def run_to(model, opt, steps: int) -> None:
    """The steps after the last one, up to `steps`."""
    for step in range(opt.last_step, steps):
        opt.zero_grad()
        backward(model, tokens_of(step))
        opt.step()
        opt.wait()


def step_with_random_gradients(rank: int, model: nn.Module, opt: dmuon.Muon) -> None:
    """The step after the last one. Gradients depend on it and the rank alone, so that a step that was undone is made up for."""
    torch.manual_seed(1000 * opt.last_step + rank)
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    opt.step()
    opt.wait()


# -- a bag of parameters ---------------------------------------------------------------------------

LAYOUTS = {"rows": Shard(0), "columns": Shard(1), "replicate": Replicate()}


class Bag(nn.Module):
    """Parameters by name, laid out over the workers as `layout` says: a key of LAYOUTS, or "plain"."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], layout: str) -> None:
        super().__init__()
        self.layout = layout
        self.mesh = None if layout == "plain" else init_device_mesh("cpu", (dist.get_world_size(),))
        for name, tensor in tensors.items():
            self.register_parameter(name, nn.Parameter(self.lay_out(tensor.clone())))

    def lay_out(self, tensor: torch.Tensor) -> torch.Tensor:
        """This worker's piece of its own `tensor`; nothing is exchanged."""
        if self.mesh is None:
            return tensor
        placement, local = LAYOUTS[self.layout], tensor
        if isinstance(placement, Shard):
            pieces, rank = tensor.chunk(self.mesh.size(), placement.dim), self.mesh.get_local_rank()
            local = pieces[rank] if rank < len(pieces) else tensor.narrow(placement.dim, 0, 0)
        return DTensor.from_local(local.contiguous(), self.mesh, [placement], run_check=False,
                                  shape=tensor.shape, stride=tensor.stride())

    def feed(self, grads: Mapping[str, torch.Tensor | None]) -> None:
        for name, p in self.named_parameters():
            grad = grads[name]
            p.grad = None if grad is None else self.lay_out(grad.to(p.dtype))


def random_tensors(shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, torch.Tensor]:
    """Multiples of 1/64, so that bf16 holds them and sums of few are exact."""
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randint(-128, 128, shape, generator=generator) / 64.0
            for name, shape in shapes.items()}


def feed(rank: int, world_size: int, address: str | list[str], job: str, shapes: Mapping[str, tuple[int, ...]], *,
         steps: int = 3, layout: str = "rows", dtype: torch.dtype = torch.float32,
         grads: Callable[[int, int], Mapping[str, torch.Tensor | None]] | None = None,
         load: str | None = None, saves: Mapping[int, str] | None = None,
         keywords: Mapping[str, Any] = HYPERS) -> dict[str, Any]:
    """Steps a bag of `shapes` with gradients `grads(step, rank)`, random ones by default. `address`, `load` and
    `saves` are those of train()."""
    bag = Bag({n: t.to(dtype) for n, t in random_tensors(shapes, 0).items()}, layout)
    where = address if isinstance(address, str) else address[rank]
    with dmuon.Muon(bag, job=job, address=where, verbose=False, **keywords) as opt:
        load_whole(opt, bag, load)
        history, results = [whole_params(bag)], []
        for step in range(opt.last_step + 1, steps + 1):
            bag.feed(grads(step, rank) if grads else random_tensors(shapes, step))
            opt.step()
            if saves and step in saves:
                opt.save(saves[step])
            history.append(whole_params(bag))
            results.append(opt.result)
        keys = [sorted(opt.state_dict()), sorted(opt.state_dict()["param_groups"][0])]
        return {"params": history, "results": results, "routes": opt.routes(), "keys": keys,
                "units": opt.plan.matrix_units}


def feed_plain(shapes: Mapping[str, tuple[int, ...]], *, steps: int = 3, is_muon=lambda name: True,
               grads: Callable[[int], Mapping[str, torch.Tensor]] | None = None,
               hypers: Mapping[str, Any] = HYPERS, **muon: Any) -> list[Params]:
    bag = Bag(random_tensors(shapes, 0), "plain")
    optimizer = PlainPair(bag, is_muon, **hypers, **muon)
    history = [whole_params(bag)]
    for step in range(1, steps + 1):
        bag.feed(grads(step) if grads else random_tensors(shapes, step))
        optimizer.step()
        history.append(whole_params(bag))
    return history
