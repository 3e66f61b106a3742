# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""`Muon` is a torch.optim.Optimizer: what a trainer expects of one holds."""

import itertools
import pathlib
import subprocess
import sys
import textwrap

import dmuon_client as dmuon
import pytest
import torch
import trainers
from torch.utils.data import DataLoader, Dataset
from trainers import HYPERS, bits, whole_params

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def make(daemon, job):
    """make(**keywords): a small model and its optimizer, both in this process."""
    made = []

    def build(**keywords):
        model = trainers.make_small(False, torch.float32)
        opt = dmuon.Muon(model, **{"job": job, "address": daemon.address, "verbose": False, **HYPERS,
                                   **keywords})
        made.append(opt)
        return model, opt

    yield build
    for opt in made:
        opt.close()


def run_step(model, opt, step=0):
    opt.zero_grad()
    trainers.backward(model, trainers.tokens_of(step))
    opt.step()


def test_zero_grad_and_step_follow_the_contract(make):
    model, opt = make()
    assert isinstance(opt, torch.optim.Optimizer) and opt.last_step == 0 and not opt.resumed
    run_step(model, opt)
    grads = [p.grad.clone() for p in model.parameters()]
    assert opt.last_step == opt.steps_done == opt.result.step == 1
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), grads, strict=True))
    opt.zero_grad()
    assert all(p.grad is None for p in model.parameters())


def test_closure_is_evaluated_with_gradients_and_its_loss_returned(make):
    model, opt = make()

    def closure():
        opt.zero_grad()
        trainers.backward(model, trainers.tokens_of(0))
        assert torch.is_grad_enabled()
        return 3.5

    assert opt.step(closure) == 3.5
    assert opt.last_step == 1


def test_state_dict_carries_hyper_parameters_and_step(make):
    model, opt = make()
    run_step(model, opt)
    opt.param_groups[0]["lr"] = 0.123
    saved = opt.state_dict()
    assert saved["dmuon"]["last_step"] == 1
    opt.param_groups[0]["lr"] = 0.5
    opt.load_state_dict(saved)
    assert opt.param_groups[0]["lr"] == 0.123
    run_step(model, opt, 1)


def test_state_of_a_later_step_is_refused(make):
    model, opt = make()
    saved = opt.state_dict() | {"dmuon": {"last_step": 7}}
    with pytest.raises(ValueError, match=r"saved step is 7, but job .* is at step 0: .*opt\.load\(name\)"):
        opt.load_state_dict(saved)


def test_add_param_group_is_refused_with_a_reason(make):
    _, opt = make()
    with pytest.raises(RuntimeError, match="plans ownership of all parameters at once"):
        opt.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2, 2))]})


@pytest.mark.parametrize(("key", "value"), [("lr", -1.0), ("lr", float("nan")), ("weight_decay", -0.1),
                                            ("momentum", 1.0)])
def test_bad_hyper_parameter_is_named_and_changes_nothing(make, key, value):
    model, opt = make()
    group = next(g for g in opt.param_groups if key in g and g["algorithm"] == "muon")
    good, before = group[key], bits(whole_params(model))
    group[key] = value
    with pytest.raises(ValueError, match=f"{key} of group 'muon'"):
        run_step(model, opt)
    assert bits(whole_params(model)) == before and opt.last_step == 0
    group[key] = good
    run_step(model, opt)


def test_closed_optimizer_says_so(make):
    model, opt = make()
    opt.close()
    opt.close()
    with pytest.raises(RuntimeError, match="is closed"):
        run_step(model, opt)


def test_no_daemon_is_an_error_that_names_the_address(tmp_path):
    address = f"unix:{tmp_path}/nobody.sock"
    with pytest.raises(dmuon.DmuonError, match="nobody.sock"):
        dmuon.Muon(torch.nn.Linear(2, 2), address=address, connect_timeout=0.3, verbose=False)


def test_frozen_parameters_are_left_alone(daemon, job):
    # cases row 96, without a checkpoint
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    model[0].requires_grad_(False)
    before = model[0].weight.clone()
    with dmuon.Muon(model, job=job, address=daemon.address, verbose=False) as opt:
        model(torch.ones(2, 4)).sum().backward()
        opt.step()
        assert set(opt.routes()) == {"1.weight", "1.bias"}
    assert torch.equal(model[0].weight, before)


def test_routes_and_job_are_printed_once(make, capsys):
    # cases rows 25 and 31
    make(verbose=True)
    printed = capsys.readouterr().out
    assert printed.count("blocks.*.up.weight") == 1
    assert "embedding by name" in printed or "embedding" in printed


def test_counter_of_newton_schulz_is_the_daemons_own(make, daemon, job):
    # cases row 31
    model, opt = make()
    for step in range(3):
        run_step(model, opt, step)
    lines = [x for x in daemon.metrics().splitlines() if f'job_id="{job}"' in x]
    (calls,) = [float(x.split()[-1]) for x in lines if x.startswith("dmuon_newton_schulz_calls_total{")]
    assert calls == opt.result.newton_schulz_calls == 3 * trainers.Small.MATRICES
    # None of the matrices is a square: all run in the form that does less for those.
    runs = [x for x in lines if x.startswith("dmuon_newton_schulz_runs_total{") and not x.endswith(" 0")]
    assert len(runs) == 1 and 'form="gram"' in runs[0] and 'precision="fp32"' in runs[0]
    assert float(runs[0].split()[-1]) == calls


class Rows(Dataset):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return trainers.tokens_of(index)


def test_forked_data_loader_workers_are_harmless(make):
    model, opt = make()
    loader = DataLoader(Rows(), batch_size=None, num_workers=2, multiprocessing_context="fork")
    for rows in itertools.chain(loader, loader):
        opt.zero_grad()
        trainers.backward(model, rows)
        opt.step()
    assert opt.last_step == opt.result.step == 8


PROGRAM = """
{imports}
import torch
model = torch.nn.Linear(4, 4)
opt = dmuon_client.Muon(model, job={job!r}, address={address!r}, verbose=False)
model(torch.ones(2, 4)).sum().backward()
opt.step()
print(opt.last_step)
{end}
"""


def run_program(job, address, imports="import dmuon_client", end=""):
    program = textwrap.dedent(PROGRAM).format(imports=imports, job=job, address=address, end=end)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120,
                          cwd=ROOT / "client" / "python", check=False)


def importable(name: str) -> bool:
    import importlib.util
    return importlib.util.find_spec(name) is not None


@pytest.mark.parametrize("imports", [
    "import dmuon_client, torch",
    "import torch; import dmuon_client",
    "import ctypes, dmuon_client._abi as a; a.load(); import torch, dmuon_client",
    pytest.param("import grpc; import dmuon_client", marks=pytest.mark.skipif(
        not importable("grpc"), reason="grpcio is not installed")),
    pytest.param("import dmuon_client, grpc; import torch.utils.tensorboard", marks=pytest.mark.skipif(
        not importable("grpc") or not importable("tensorboard"),
        reason="grpcio or tensorboard is not installed")),
])
def test_order_of_imports_does_not_matter(daemon, job, imports):
    done = run_program(job, daemon.address, imports)
    assert (done.returncode, done.stdout.strip()) == (0, "1"), done.stderr


def resumes(job, address) -> bool:
    model = torch.nn.Linear(4, 4)
    with dmuon.Muon(model, job=job, address=address, verbose=False) as opt:
        return opt.resumed


@pytest.mark.parametrize(("end", "code", "kept"), [
    ("", 0, False), ("opt.close()", 0, False), ("raise RuntimeError('crash')", 1, True),
    ("import os; os._exit(3)", 3, True), ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9, True)])
def test_only_an_orderly_end_forgets_the_job(daemon, job, end, code, kept):
    assert run_program(job, daemon.address, end=end).returncode == code
    assert resumes(job, daemon.address) is kept


def test_job_id_comes_from_argument_then_environment(daemon, job, monkeypatch):
    def job_of(**keywords):
        with dmuon.Muon(torch.nn.Linear(2, 2), address=daemon.address, verbose=False, **keywords) as opt:
            return opt.job

    assert job_of().startswith("job-")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert job_of().startswith("job-")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", f"{job}.elastic")
    assert job_of() == f"{job}.elastic"
    monkeypatch.setenv("DMUON_JOB", f"{job}.env")
    assert job_of() == f"{job}.env"
    assert job_of(job=job) == job


def test_world_size_without_a_process_group_is_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match="WORLD_SIZE is 2"):
        dmuon.Muon(torch.nn.Linear(2, 2), verbose=False)
