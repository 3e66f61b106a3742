# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""The example that users start with: client/examples/train_gpt.py, by its command line and under torchrun."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch
from dmuon_client import checkpoint
from dmuon_fixtures import Daemon

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "client" / "examples" / "train_gpt.py"
STEPS = 3
SMALL = ["--steps", str(STEPS), "--batch", "1", "--context", "16"]


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A daemon, and where it keeps its checkpoints."""
    folder = tmp_path_factory.mktemp("checkpoints")
    made = Daemon("--checkpoint-dir", str(folder))
    try:
        yield made.start(), folder
        assert made.stop() == 0
    finally:
        made.close()


def torchrun(address: str, *arguments: str) -> str:
    """What the script prints of a run on two workers."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", "2",
               "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1",
               str(SCRIPT), *arguments]
    environment = os.environ | {"DMUON_ADDRESS": address, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def in_pool(rank: int, _world_size: int, address: str, arguments: list[str]) -> dict | None:
    """The script's report of a run in a worker that has imported torch already."""
    import train_gpt

    sys.argv = [str(SCRIPT), *arguments]
    os.environ |= {"DMUON_ADDRESS": address, "LOCAL_RANK": str(rank)}
    try:
        return train_gpt.train(train_gpt.parse_arguments())
    finally:
        del os.environ["DMUON_ADDRESS"], os.environ["LOCAL_RANK"]


def test_the_example_trains_and_goes_on_from_its_checkpoint_to_the_same_bits(kept, pools, job, tmp_path):
    node, folder = kept
    report = tmp_path / "report.json"
    # Not after every step: one that is late would make the next fall out.
    arguments = [*SMALL, "--job", job, "--checkpoints", "2"]
    printed = torchrun(node.address, *arguments, "--parity-steps", "1", "--report", str(report))
    numbers = json.loads(report.read_text())
    assert numbers["steps"] == STEPS and numbers["world_size"] == 2
    assert numbers["parity_max_rel_diff"] < 1e-5
    assert numbers["matrices"] == 24 and numbers["ns_calls"] == STEPS * 24
    assert f"in {STEPS} steps" in printed and "to plain PyTorch" in printed
    uninterrupted = checkpoint.read(folder / job / "last.json")
    assert checkpoint.step_of(folder / job / "last.json") == STEPS
    (folder / job / "last.json").unlink()

    resumed, _ = pools(2).run(in_pool, node.address, [*arguments, "--load", "step-000000000002"])
    assert resumed["steps"] == STEPS - 2 and resumed["parity_max_rel_diff"] is None
    again = checkpoint.read(folder / job / "last.json")
    assert again.keys() == uninterrupted.keys()
    for name, contents in again.items():
        for what, value in contents.items():
            same = torch.equal if isinstance(value, torch.Tensor) else (lambda a, b: a == b)
            assert same(value, uninterrupted[name][what]), (name, what)
