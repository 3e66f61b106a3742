# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""A part of a checkpoint in memory: what daemon/checkpoint/README.md says of the file, read and written."""

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence

import torch

_ALIGNMENT = 64  # of where values begin
_LENGTH_BYTES = 8
_ITEM = 4


@dataclasses.dataclass(frozen=True)
class Entry:
    """An array, as the head describes it."""

    tensor: str
    tensor_shape: list[int]
    optimizer: str
    updates: int
    quantity: str
    offset: list[int]
    length: list[int]
    matrix: int  # of the unit that the box is; -1: the values are those of the box
    sha256: str = ""

    @property
    def key(self) -> str:
        whole = not any(self.offset) and self.length == self.tensor_shape
        box = ", ".join(f"{begin}:{begin + size}" for begin, size in zip(self.offset, self.length, strict=True))
        return (f"{self.tensor}/{self.quantity}{'' if whole else f'[{box}]'}"
                f"{'' if self.matrix < 0 else f'#{self.matrix}'}")


def read(data: torch.Tensor) -> list[tuple[Entry, torch.Tensor]]:
    """The arrays of a part whose bytes are `data`; they share its memory. ValueError when it is none."""
    try:
        size = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES].numpy().tobytes(), "little")
        head = json.loads(data[_LENGTH_BYTES:size].numpy().tobytes())
        values = data[size:]
        arrays = []
        for key, fields in json.loads(head["__metadata__"]["entries"]).items():
            begin, end = head[key]["data_offsets"]
            arrays.append((Entry(**fields), values[begin:end].view(torch.float32).reshape(head[key]["shape"])))
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        raise ValueError(f"no part of a checkpoint: {error!r}") from error
    return arrays


def write(fd: int, about: Mapping[str, str], arrays: Sequence[tuple[Entry, Sequence[int]]],
          values: Iterable[torch.Tensor]) -> str:
    """Writes a part to an empty file; SHA-256 of its head. `about`: the fields of "__metadata__" beside the format.
    `arrays`: entries without checksums, and shapes; `values` are asked for one after the other."""
    drafts = [(dataclasses.replace(entry, sha256="0" * 64), shape) for entry, shape in arrays]
    at = len(_head(about, drafts))
    done = []
    for (entry, shape), tensor in zip(arrays, values, strict=True):
        data = tensor.detach().to("cpu", torch.float32).contiguous().view(-1).view(torch.uint8).numpy()
        _write_bytes(fd, data, at)
        at += data.nbytes
        done.append((dataclasses.replace(entry, sha256=hashlib.sha256(data).hexdigest()), shape))
    head = _head(about, done)
    _write_bytes(fd, head, 0)
    return hashlib.sha256(head).hexdigest()


def _write_bytes(fd: int, data, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, at)
        view, at = view[written:], at + written


def _head(about: Mapping[str, str], arrays: Sequence[tuple[Entry, Sequence[int]]]) -> bytes:
    entries = {entry.key: dataclasses.asdict(entry) for entry, _ in arrays}
    head, begin = {"__metadata__": {"format": "dmuon-1", **about, "entries": json.dumps(entries)}}, 0
    for entry, shape in arrays:
        end = begin + _ITEM * math.prod(shape)
        head[entry.key] = {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(head).encode()
    size = -(-(_LENGTH_BYTES + len(text)) // _ALIGNMENT) * _ALIGNMENT - _LENGTH_BYTES
    return size.to_bytes(_LENGTH_BYTES, "little") + text.ljust(size)
