# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""The service's checkpoints without the service: what is in the files, and the same for torch's optimizers.

    from dmuon_client import checkpoint
    tensors = checkpoint.read("/checkpoints/run-7/best.json")
    model.load_state_dict({name: tensor["weight"] for name, tensor in tensors.items()}, strict=False)

A checkpoint is a manifest, <job>/<name>.json, and the parts that it names, one a node: safetensors files beside it. Each
array is a box of a tensor's fp32 master weight or of its optimizer's state; here they are whole tensors again.
"""

import dataclasses
import hashlib
import json
import math
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import safetensors
import torch
from torch import nn

FORMAT = 1
# Of "optimizer": those that torch has too, and what it calls their states.
_MUON = {"momentum_buffer": "momentum"}
_TORCH = {"muon(ema)": _MUON, "muon(accumulate)": _MUON,
          "adamw": {"exp_avg": "momentum", "exp_avg_sq": "second_moment"}}

# "optimizer": str, with the momentum's form as in "muon(ema)"; "updates": int, that it has applied; "weight" and each
# state: a tensor of the global shape, or where a state has one array for each matrix (norms of rows, a basis) a list of
# them, in the order of rows.
Contents = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class _Entry:
    """An array of a part, as its head describes it."""

    tensor: str
    tensor_shape: list[int]
    optimizer: str
    updates: int
    quantity: str
    offset: list[int]
    length: list[int]
    matrix: int  # of the unit that the box is; -1: the values are those of the box
    sha256: str


def read(path: str | os.PathLike[str], *, verify: bool = True) -> dict[str, Contents]:
    """Everything in a checkpoint, by name of the tensor, in host memory.

    `path`: a manifest, or a job's directory, whose latest checkpoint by step is taken. `verify`: compare checksums,
    which takes longer than to read. FileNotFoundError naming what is missing: nodes without a shared directory write
    each its own part, and they must be copied beside the manifest. ValueError naming the file and what is wrong in it.
    """
    manifest_path = _find(pathlib.Path(path))
    manifest = _read_manifest(manifest_path)
    found: dict[str, Contents] = {}
    pieces: dict[tuple[str, str], list[tuple[_Entry, torch.Tensor]]] = {}
    for part in manifest["parts"]:
        for entry, values in _read_part(manifest_path, manifest, part, verify):
            contents = found.setdefault(entry.tensor, {"optimizer": entry.optimizer, "updates": entry.updates})
            if (contents["optimizer"], contents["updates"]) != (entry.optimizer, entry.updates):
                raise ValueError(f"{manifest_path}: {entry.tensor} is of {entry.updates} updates of {entry.optimizer} in "
                                 f"{part['file']}, of {contents['updates']} of {contents['optimizer']} elsewhere")
            pieces.setdefault((entry.tensor, entry.quantity), []).append((entry, values))
    for (tensor, quantity), arrays in pieces.items():
        found[tensor][quantity] = _assemble(f"{manifest_path}: {tensor}/{quantity}", arrays)
    return found


def step_of(path: str | os.PathLike[str]) -> int:
    """The step that the checkpoint is of; `path` as for `read`."""
    return _read_manifest(_find(pathlib.Path(path)))["step"]


def to_torch(tensors: Mapping[str, Contents], *, momentum: float | None = None) -> dict[str, dict[str, torch.Tensor]]:
    """State of torch.optim.Muon ("momentum_buffer") and torch.optim.AdamW ("exp_avg", "exp_avg_sq", "step"), by name
    of the parameter, as the "state" of torch.distributed.checkpoint is.

    torch's Muon keeps a mean of gradients, M <- mu*M + (1-mu)*G, as "muon(ema)" does. "muon(accumulate)" keeps a sum,
    M <- mu*M + G; give its `momentum` mu, by which the buffers are scaled. ValueError naming a tensor when it is not
    given, and one of an optimizer that torch does not have.
    """
    if momentum is not None and not 0.0 <= momentum < 1.0:
        raise ValueError(f"momentum is {momentum!r}; it must be a number in [0, 1)")
    state = {}
    for name, contents in tensors.items():
        optimizer = contents["optimizer"]
        if optimizer not in _TORCH:
            raise ValueError(f"{name} belongs to {optimizer}, which torch does not have; it has {', '.join(_TORCH)}")
        state[name] = {theirs: contents[ours].clone() for theirs, ours in _TORCH[optimizer].items()}
        if optimizer == "adamw":
            state[name]["step"] = torch.tensor(float(contents["updates"]))
        elif optimizer == "muon(accumulate)":
            if momentum is None:
                raise ValueError(f"{name} has a sum of gradients, torch's Muon their mean: give the run's momentum")
            state[name]["momentum_buffer"] *= 1.0 - momentum
    return state


def state_dict_for(optimizer: torch.optim.Optimizer, model: nn.Module,
                   state: Mapping[str, Mapping[str, torch.Tensor]]) -> dict[str, Any]:
    """What optimizer.load_state_dict takes: `state` of `to_torch` in the order of the optimizer's parameters, which are
    those of `model`, unsharded. Its param_groups stay as they are. KeyError naming a parameter without state."""
    names = {id(param): name for name, param in model.named_parameters()}
    ordered = [names[id(param)] for group in optimizer.param_groups for param in group["params"]]
    if missing := [name for name in ordered if name not in state]:
        raise KeyError(f"no state of {', '.join(missing)} in the checkpoint")
    return {"state": {index: dict(state[name]) for index, name in enumerate(ordered)},
            "param_groups": optimizer.state_dict()["param_groups"]}


def _find(path: pathlib.Path) -> pathlib.Path:
    if not path.is_dir():
        if not path.exists():
            raise FileNotFoundError(f"{path}: no such manifest or directory")
        return path
    manifests = sorted(path.glob("*.json"))
    if not manifests:
        raise FileNotFoundError(f"{path}: no manifest (*.json) of a checkpoint in it")
    return max(manifests, key=lambda manifest: _read_manifest(manifest)["step"])


def _read_manifest(path: pathlib.Path) -> dict[str, Any]:
    try:
        manifest = json.loads(path.read_text())
        version, _ = manifest["format"], [manifest[key] + 0 for key in ("step", "generation")]
        _ = [(part["file"] + "", part["node"] + "", part["bytes"] + 0) for part in manifest["parts"]]
    except (ValueError, KeyError, TypeError, UnicodeError) as error:
        raise ValueError(f"{path}: no manifest of a checkpoint: {error!r}") from error
    if version != FORMAT:
        raise ValueError(f"{path}: format {version} of dmuon {manifest.get('dmuon_version')}; this reads format {FORMAT}")
    return manifest


def _read_part(manifest_path: pathlib.Path, manifest: Mapping[str, Any], part: Mapping[str, Any],
               verify: bool) -> list[tuple[_Entry, torch.Tensor]]:
    path = manifest_path.parent / pathlib.Path(part["file"]).name
    if not path.exists():
        raise FileNotFoundError(f"{path}: the part that node {part['node']} wrote of checkpoint {manifest['name']} is not "
                                "here; copy it from that node's checkpoint directory")
    if (size := path.stat().st_size) != part["bytes"]:
        raise ValueError(f"{path}: has {size} bytes, {manifest_path.name} says {part['bytes']}")
    arrays = []
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            _compare(manifest, metadata)
            for key, fields in json.loads(metadata["entries"]).items():
                entry = _Entry(**fields)
                values = file.get_tensor(key)
                if verify and hashlib.sha256(values.contiguous().numpy()).hexdigest() != entry.sha256:
                    raise ValueError(f"the values of {key} are not those that were saved")
                arrays.append((entry, values))
    except (safetensors.SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error
    return arrays


def _compare(manifest: Mapping[str, Any], metadata: Mapping[str, str]) -> None:
    for key in ("job", "name", "step", "generation"):
        if metadata.get(key) != str(manifest[key]):
            raise ValueError(f"is of {key} {metadata.get(key)}, the manifest of {manifest[key]}")


def _assemble(what: str, arrays: list[tuple[_Entry, torch.Tensor]]) -> torch.Tensor | list[torch.Tensor]:
    """Boxes to the whole tensor; arrays of matrices in their order."""
    first = arrays[0][0]
    if first.matrix >= 0:
        ordered = sorted(arrays, key=lambda array: (array[0].offset, array[0].matrix))
        return [values for _, values in ordered]
    there = sum(values.numel() for _, values in arrays)
    if there != math.prod(first.tensor_shape):
        raise ValueError(f"{what}: {there} of {math.prod(first.tensor_shape)} elements are in the parts")
    if len(arrays) == 1:
        return arrays[0][1]
    whole = torch.empty(first.tensor_shape)
    for entry, values in arrays:
        piece = whole
        for dim, (offset, length) in enumerate(zip(entry.offset, entry.length, strict=True)):
            piece = piece.narrow(dim, offset, length)
        piece.copy_(values)
    return whole
