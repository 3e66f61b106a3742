# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""The service's checkpoints without the service: what is in the files, and the same for torch's optimizers.

    from dmuon_client import checkpoint
    tensors = checkpoint.read("/checkpoints/run-7/best.json")
    model.load_state_dict({name: tensor["weight"] for name, tensor in tensors.items()}, strict=False)

A checkpoint is a manifest, <job>/<name>.json, and the parts that it names, one a node: safetensors files beside it. Each
array is a box of a tensor's fp32 master weight or of its optimizer's state; here they are whole tensors again.
"""

import hashlib
import json
import math
import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import safetensors
import torch
from torch import nn

from dmuon_client.part import Entry

FORMAT = 1
# Of "optimizer": those that torch has too, and what it calls their states.
_MUON = {"momentum_buffer": "momentum"}
_TORCH = {"muon(ema)": _MUON, "muon(accumulate)": _MUON,
          "adamw": {"exp_avg": "momentum", "exp_avg_sq": "second_moment"}}

_NO_STATE = ("optimizer", "updates", "weight")

# "optimizer": str, with the momentum's form as in "muon(ema)"; "updates": int, that it has applied; "weight" and each
# state: a tensor of the global shape, or where a state has one array for each matrix (norms of rows, a basis) a list of
# them, in the order of rows.
Contents = dict[str, Any]


def read(path: str | os.PathLike[str], *, verify: bool = True) -> dict[str, Contents]:
    """Everything in a checkpoint, by name of the tensor, in host memory.

    `path`: a manifest, or a job's directory, whose latest checkpoint by step is taken. `verify`: compare checksums,
    which takes longer than to read. FileNotFoundError naming what is missing: nodes without a shared directory write
    each its own part, and they must be copied beside the manifest. ValueError naming the file and what is wrong in it.
    """
    manifest_path = _find(pathlib.Path(path))
    manifest = _read_manifest(manifest_path)
    arrays = ((part["file"], entry, values) for part in manifest["parts"]
              for entry, values in _read_part(manifest_path, manifest, part, verify))
    return contents_of(str(manifest_path), arrays)


def contents_of(what: str, arrays: Iterable[tuple[str, Entry, torch.Tensor]]) -> dict[str, Contents]:
    """The tensors that these arrays are pieces of; each comes with where it was found. ValueError as of `read`."""
    found: dict[str, Contents] = {}
    pieces: dict[tuple[str, str], list[tuple[Entry, torch.Tensor]]] = {}
    for where, entry, values in arrays:
        contents = found.setdefault(entry.tensor, {"optimizer": entry.optimizer, "updates": entry.updates})
        if (contents["optimizer"], contents["updates"]) != (entry.optimizer, entry.updates):
            raise ValueError(f"{what}: {entry.tensor} is of {entry.updates} updates of {entry.optimizer} in {where}, of "
                             f"{contents['updates']} of {contents['optimizer']} elsewhere")
        pieces.setdefault((entry.tensor, entry.quantity), []).append((entry, values))
    for (tensor, quantity), boxes in pieces.items():
        found[tensor][quantity] = _assemble(f"{what}: {tensor}/{quantity}", boxes)
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
        if optimizer == "muon(accumulate)" and momentum is None:
            raise ValueError(f"{name} has a sum of gradients, torch's Muon their mean: give the run's momentum")
        state[name] = {key: value.clone() for key, value in layout_of(contents, momentum).items()}
    return state


def layout_of(contents: Contents, momentum: float | None) -> dict[str, Any]:
    """State of one parameter as torch's optimizers have it. Optimizers that torch does not have keep their own names,
    with "step" beside them, as AdamW does. `momentum`: as for `to_torch`. Tensors may be those of `contents`."""
    optimizer, updates = contents["optimizer"], torch.tensor(float(contents["updates"]))
    if optimizer not in _TORCH:
        return {"step": updates, **{key: contents[key] for key in contents if key not in _NO_STATE}}
    state = {theirs: contents[ours] for theirs, ours in _TORCH[optimizer].items()}
    if optimizer == "adamw":
        state["step"] = updates
    elif optimizer == "muon(accumulate)":
        state["momentum_buffer"] = state["momentum_buffer"] * (1.0 - momentum)
    return state


def contents_from(state: Mapping[str, Any], optimizer: str, step: int, momentum: float | None) -> Contents:
    """The inverse of `layout_of`, without the weight: exact, but for the rounding of a sum's scaling. `step`: what
    "updates" are where the state does not say, as torch's Muon does not. ValueError naming the state that is missing, or
    has no place in `optimizer`."""
    names = _TORCH.get(optimizer, {key: key for key in state if key not in ("step", *_NO_STATE)})
    needed = [*names, "step"] if optimizer == "adamw" else list(names)
    for keys, what in (([key for key in needed if key not in state], "is missing"),
                       ([key for key in state if key not in names and key != "step"], "has no place in it")):
        if keys:
            raise ValueError(f"{optimizer} keeps {', '.join(needed)}: {', '.join(keys)} {what}")
    updates = float(state.get("step", step))
    if not updates.is_integer() or updates < 0:
        raise ValueError(f"step is {updates}; it must be a whole number")
    contents: Contents = {"optimizer": optimizer, "updates": int(updates),
                          **{ours: state[theirs] for theirs, ours in names.items()}}
    if optimizer == "muon(accumulate)":
        contents["momentum"] = contents["momentum"] / (1.0 - momentum)
    return contents


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
               verify: bool) -> list[tuple[Entry, torch.Tensor]]:
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
                entry = Entry(**fields)
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


def _assemble(what: str, arrays: list[tuple[Entry, torch.Tensor]]) -> torch.Tensor | list[torch.Tensor]:
    """Boxes to the whole tensor; arrays of matrices in their order."""
    first = arrays[0][0]
    if any(entry.matrix >= 0 for entry, _ in arrays):  # a matrix of one row may have a state of its own shape
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
