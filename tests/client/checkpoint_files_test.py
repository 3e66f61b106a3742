# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""A checkpoint is read without the service: boxes become whole tensors, and what is missing is named."""

import hashlib
import json

import pytest
import torch
from dmuon_client import checkpoint
from safetensors.torch import save_file
from torch import nn

UPDATES = 3


def counting(*shape: int) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)


class Writer:
    """A checkpoint of two nodes, as the service writes it, changed by a test before it is written."""

    def __init__(self, folder) -> None:
        self.folder = folder
        self.parts: dict[str, dict[str, tuple[dict, torch.Tensor]]] = {"node-0": {}, "node-1": {}}

    def add(self, node: str, tensor: str, quantity: str, whole: torch.Tensor, *, rows: slice | None = None,
            optimizer: str = "muon", matrix: int = -1, shape: tuple[int, ...] | None = None) -> None:
        """`rows` of the tensor, of `shape`; with `matrix` an array of that matrix of the box."""
        values = whole if rows is None or matrix >= 0 else whole[rows]
        shape = shape or tuple(whole.shape)
        offset, length = [0] * len(shape), list(shape)
        if rows is not None:
            offset[0], length[0] = rows.start, rows.stop - rows.start
        key = f"{tensor}/{quantity}{'' if rows is None else rows}{'' if matrix < 0 else f'#{matrix}'}"
        entry = {"tensor": tensor, "tensor_shape": list(shape), "optimizer": optimizer, "updates": UPDATES,
                 "quantity": quantity, "offset": offset, "length": length, "matrix": matrix,
                 "sha256": hashlib.sha256(values.contiguous().numpy()).hexdigest()}
        self.parts[node][key] = (entry, values.contiguous())

    def write(self, name: str = "best", step: int = UPDATES):
        parts = []
        for node, arrays in self.parts.items():
            file = self.folder / f"{name}.{step}.1.{node}.safetensors"
            metadata = {"format": "dmuon-1", "job": "run", "name": name, "step": str(step), "generation": "1",
                        "node": node, "entries": json.dumps({key: entry for key, (entry, _) in arrays.items()})}
            save_file({key: values for key, (_, values) in arrays.items()}, file, metadata)
            parts.append({"node": node, "file": file.name, "bytes": file.stat().st_size})
        manifest = self.folder / f"{name}.json"
        manifest.write_text(json.dumps({"format": 1, "job": "run", "name": name, "step": step, "generation": 1,
                                        "automatic": False, "dmuon_version": "0.1.0", "parts": parts}))
        return manifest


@pytest.fixture
def writer(tmp_path):
    made = Writer(tmp_path)
    made.add("node-0", "w", "weight", counting(6, 4))
    made.add("node-1", "w", "momentum", 2 * counting(6, 4))
    for quantity, factor in (("weight", 1), ("momentum", 3), ("second_moment", 5)):
        made.add("node-0", "bias", quantity, factor * counting(7), rows=slice(0, 5), optimizer="adamw")
        made.add("node-1", "bias", quantity, factor * counting(7), rows=slice(5, 7), optimizer="adamw")
    return made


def test_boxes_of_all_parts_are_whole_tensors_again(writer):
    # cases rows 87 and 92
    manifest = writer.write()
    tensors = checkpoint.read(manifest)
    assert sorted(tensors) == ["bias", "w"]
    assert {name: (t["optimizer"], t["updates"]) for name, t in tensors.items()} == {
        "w": ("muon", UPDATES), "bias": ("adamw", UPDATES)}
    torch.testing.assert_close(tensors["w"]["momentum"], 2 * counting(6, 4), rtol=0, atol=0)
    torch.testing.assert_close(tensors["bias"]["second_moment"], 5 * counting(7), rtol=0, atol=0)
    assert checkpoint.step_of(manifest) == UPDATES


def test_state_of_matrices_is_a_list_in_the_order_of_rows(writer):
    for first in (2, 0):
        for matrix in (1, 0):
            writer.add("node-0", "stack", "second_moment", torch.full((3, 1), 10.0 * first + matrix),
                       rows=slice(first, first + 2), matrix=matrix, shape=(4, 3, 5), optimizer="normuon")
    moments = checkpoint.read(writer.write())["stack"]["second_moment"]
    assert [float(m[0, 0]) for m in moments] == [0.0, 1.0, 20.0, 21.0]
    assert moments[0].shape == (3, 1)


def test_a_directory_means_its_latest_checkpoint(writer):
    writer.write("late", 12)
    writer.write("early", 9)
    assert checkpoint.step_of(writer.folder) == 12


def test_scalars_are_read(writer):
    writer.add("node-1", "gain", "weight", torch.tensor(1.5), optimizer="adamw")
    assert float(checkpoint.read(writer.write())["gain"]["weight"]) == 1.5


def test_a_missing_part_names_file_and_node(writer):
    manifest = writer.write()
    (manifest.parent / "best.3.1.node-1.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="best.3.1.node-1.safetensors: the part that node node-1 wrote"):
        checkpoint.read(manifest)


def test_a_missing_box_names_the_tensor(writer):
    for quantity in ("weight", "momentum", "second_moment"):
        writer.parts["node-1"].pop(f"bias/{quantity}{slice(5, 7)}")
    with pytest.raises(ValueError, match="bias/weight: 5 of 7 elements are in the parts"):
        checkpoint.read(writer.write())


def test_damage_is_told_unless_it_is_not_looked_for(writer):
    manifest = writer.write()
    part = manifest.parent / "best.3.1.node-0.safetensors"
    data = bytearray(part.read_bytes())
    data[-2] ^= 1
    part.write_bytes(data)
    with pytest.raises(ValueError, match="node-0.safetensors: the values of .* are not those that were saved"):
        checkpoint.read(manifest)
    checkpoint.read(manifest, verify=False)
    part.write_bytes(data[:-4])
    with pytest.raises(ValueError, match="node-0.safetensors: has .* bytes, best.json says"):
        checkpoint.read(manifest)


def test_a_part_of_another_checkpoint_is_refused(writer):
    writer.write("early", 2)
    manifest = writer.write("best")
    (manifest.parent / "early.2.1.node-0.safetensors").rename(manifest.parent / "best.3.1.node-0.safetensors")
    text = json.loads(manifest.read_text())
    text["parts"][0]["bytes"] = (manifest.parent / "best.3.1.node-0.safetensors").stat().st_size
    manifest.write_text(json.dumps(text))
    with pytest.raises(ValueError, match="node-0.safetensors: is of name early, the manifest of best"):
        checkpoint.read(manifest)


@pytest.mark.parametrize(("text", "complaint"), [
    ("{", "no manifest of a checkpoint"), ("[]", "no manifest of a checkpoint"), ("{}", "'format'"),
    ('{"format": 2, "step": 1, "generation": 1, "parts": [], "dmuon_version": "9.9"}', "format 2 of dmuon 9.9")])
def test_what_is_no_manifest_is_refused(tmp_path, text, complaint):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ValueError, match=f"x.json: .*{complaint}"):
        checkpoint.read(tmp_path / "x.json")


def test_an_empty_or_absent_directory_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no manifest"):
        checkpoint.read(tmp_path)
    with pytest.raises(FileNotFoundError, match="absent: no such manifest"):
        checkpoint.read(tmp_path / "absent")


def test_torchs_optimizers_take_the_state_over_by_name(writer):
    # cases rows 89 and 97: the step comes along, and names decide, not the order
    model = nn.ParameterDict({"bias": nn.Parameter(torch.zeros(7)), "w": nn.Parameter(torch.zeros(6, 4))})
    muon, adamw = torch.optim.Muon([model["w"]]), torch.optim.AdamW([model["bias"]], lr=1e-2)
    state = checkpoint.to_torch(checkpoint.read(writer.write()))
    for optimizer in (muon, adamw):
        optimizer.load_state_dict(checkpoint.state_dict_for(optimizer, model, state))
    assert adamw.param_groups[0]["lr"] == 1e-2
    torch.testing.assert_close(muon.state[model["w"]]["momentum_buffer"], 2 * counting(6, 4), rtol=0, atol=0)
    loaded = adamw.state[model["bias"]]
    assert float(loaded["step"]) == UPDATES
    torch.testing.assert_close(loaded["exp_avg"], 3 * counting(7), rtol=0, atol=0)
    torch.testing.assert_close(loaded["exp_avg_sq"], 5 * counting(7), rtol=0, atol=0)


def test_a_sum_of_gradients_becomes_torchs_mean(writer):
    tensors = checkpoint.read(writer.write())
    state = checkpoint.to_torch(tensors, accumulated=0.75)
    torch.testing.assert_close(state["w"]["momentum_buffer"], 0.25 * tensors["w"]["momentum"], rtol=0, atol=0)
    torch.testing.assert_close(state["bias"]["exp_avg"], tensors["bias"]["momentum"], rtol=0, atol=0)
    with pytest.raises(ValueError, match="accumulated is 1.5"):
        checkpoint.to_torch(tensors, accumulated=1.5)


def test_what_torch_does_not_have_is_named(writer):
    tensors = checkpoint.read(writer.write())
    model = nn.ParameterDict({"other": nn.Parameter(torch.zeros(6, 4))})
    with pytest.raises(KeyError, match="no state of other in the checkpoint"):
        checkpoint.state_dict_for(torch.optim.Muon(model.parameters()), model, checkpoint.to_torch(tensors))
    tensors["w"]["optimizer"] = "normuon"
    with pytest.raises(ValueError, match="w belongs to normuon, which torch does not have"):
        checkpoint.to_torch(tensors)
