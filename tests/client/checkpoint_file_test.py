# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""A checkpoint needs no dmuon to be read: safetensors and the standard library do."""

import hashlib
import json
import pathlib
import struct

import numpy
from safetensors import safe_open

GOLDEN = pathlib.Path(__file__).parents[1] / "daemon/checkpoint/golden"


def manifest() -> dict:
    return json.loads((GOLDEN / "golden.json").read_text())


def part_path() -> pathlib.Path:
    return GOLDEN / manifest()["parts"][0]["file"]


def test_safetensors_reads_all_values_of_a_part():
    with safe_open(part_path(), framework="numpy") as part:
        shapes = {key: part.get_tensor(key).shape for key in part.keys()}
        momentum = part.get_tensor("layers.0.wq/momentum")
    assert shapes == {
        "layers.0.wq/weight": (4, 3), "layers.0.wq/momentum": (4, 3), "scale/weight": (), "none/weight": (0, 5),
        "experts/momentum[1:3, 0:2, 0:3]": (2, 2, 3), "experts/row_norms[1:3, 0:2, 0:3]#2": (2,),
    }
    # As the program that wrote it counts: 7 + 1000 for each array before and this one, then quarters.
    numpy.testing.assert_array_equal(momentum.reshape(-1), 2007 + 0.25 * numpy.arange(1, 13, dtype=numpy.float32))


def test_the_metadata_tell_what_each_array_is():
    with safe_open(part_path(), framework="numpy") as part:
        metadata = part.metadata()
        entries = json.loads(metadata["entries"])
        assert set(entries) == set(part.keys())
        for key, entry in entries.items():
            assert hashlib.sha256(part.get_tensor(key).tobytes()).hexdigest() == entry["sha256"]
    whole = manifest()
    for field in ("job", "name", "step", "generation", "dmuon_version"):
        assert metadata[field] == str(whole[field])
    assert metadata["format"] == "dmuon-1"
    assert metadata["node"] == whole["parts"][0]["node"]
    box = entries["experts/row_norms[1:3, 0:2, 0:3]#2"]
    assert (box["tensor"], box["tensor_shape"], box["offset"], box["length"]) == ("experts", [4, 2, 3], [1, 0, 0], [2, 2, 3])
    assert (box["optimizer"], box["updates"], box["quantity"], box["matrix"]) == ("muon", 7, "row_norms", 2)


def test_the_manifest_proves_the_head_and_the_head_the_values():
    content = part_path().read_bytes()
    part = manifest()["parts"][0]
    assert len(content) == part["bytes"]
    head = content[:8 + struct.unpack("<Q", content[:8])[0]]
    assert len(head) % 64 == 0
    assert hashlib.sha256(head).hexdigest() == part["header_sha256"]
