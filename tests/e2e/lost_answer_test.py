# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""The answer to each call that changes something is lost once it has been carried out, the first time and later: a run
ends with the bits of an undisturbed one, and nothing is done twice."""

import re
import subprocess
import time
import warnings

import dmuon_client as dmuon
import torch
import trainers
from dmuon_fixtures import Cluster, Daemon, program, with_failpoints
from trainers import HYPERS, bits

WORKERS, STEPS = 4, 8
PATIENCE_SECONDS = 60.0
SKIPPED = (2, 5)  # steps whose gradients are not finite: such an answer comes by RPC
LEASE_SECONDS = 2  # a node beats three times as often

# By whom each is called, and which of its answers are lost.
WORKERS_CALLS = {"NodeService/Open": (1, 3), "NodeService/Register": (1, 3), "NodeService/Begin": (1, 3),
                 "NodeService/Step": (1, 3), "NodeService/Save": (1, 3), "NodeService/Restore": (1, 3),
                 "NodeService/Export": (1, 3), "NodeService/Import": (1, 3), "NodeService/Close": (1, 2)}
NODES_CALLS = {"CoordinatorService/Join": (1, 3), "CoordinatorService/Beat": (1, 3),
               "CoordinatorService/RegisterWorker": (1, 3), "CoordinatorService/ReleaseJob": (1, 2),
               "CoordinatorService/NextAttempt": (1, 3), "CoordinatorService/SetKey": (1, 3),
               "CoordinatorService/ReportPart": (1, 3), "CoordinatorService/Leave": (1,)}
OPERATORS_CALLS = {"CheckpointService/SaveJob": (1, 3), "CheckpointService/DeleteCheckpoint": (1, 2),
                   "CoordinatorService/DrainNode": (1, 3)}
# These change nothing; a stream of plans begins with all that there are.
READ_ONLY = {"NodeService/GetNodeStatus", "NodeService/GetKernels", "CoordinatorService/GetKey",
             "CoordinatorService/GetClusterStatus", "CoordinatorService/GetPlan", "CoordinatorService/WatchPlans",
             "CheckpointService/ListCheckpoints", "CheckpointService/GetCheckpoint",
             "CheckpointService/VerifyCheckpoint"}


def losses(calls: dict[str, tuple[int, ...]]) -> str:
    return ",".join(f"{call}=lose@{nth}" for call, times in calls.items() for nth in times)


def not_lost(calls: dict[str, tuple[int, ...]], log: str) -> list[str]:
    return [f"{call} at time {nth}" for call, times in calls.items() for nth in times
            if f"failpoint {call} strikes: lose at time {nth}" not in log]


def train(rank: int, world_size: int, addresses: list[str], job: str) -> dict[str, object]:
    """Goes back twice, by a checkpoint and by a state in memory. Gradients depend on the step alone."""
    model = trainers.make_small(False, torch.float32)

    def run_to(opt: dmuon.Muon, steps: int) -> None:
        while opt.last_step < steps:
            step = opt.last_step + 1
            torch.manual_seed(1000 * step + rank)
            for p in model.parameters():
                p.grad = torch.randn_like(p)
            if step in SKIPPED and rank == 0:
                next(model.parameters()).grad[0, 0] = float("nan")
            opt.step()
            opt.wait()

    with (dmuon.Muon(model, job=job, address=addresses[rank], replication="sync", reduced=False, verbose=False,
                     **HYPERS) as opt, warnings.catch_warnings()):
        warnings.simplefilter("ignore")  # of skipped steps
        calls = []
        run_to(opt, 3)
        opt.save("early", wait=True)
        state = opt.full_state_dict()
        for _ in range(2):
            run_to(opt, 6)
            calls.append(opt.result.newton_schulz_calls)
            opt.load("early")
            run_to(opt, 5)
            opt.load_full_state_dict(state)
        opt.save("late", wait=True)
        opt.full_state_dict()
        run_to(opt, STEPS)
        calls.append(opt.result.newton_schulz_calls)
        return {"params": {name: p.detach().clone().numpy() for name, p in model.named_parameters()}, "calls": calls}


def run(pools, tmp_path, lose: bool) -> list[dict[str, object]]:
    saves = tmp_path / f"lose-{lose}"
    saves.mkdir()
    made = Cluster(2, "--step-timeout", "20", "--attach-timeout", "0.5", "--checkpoint-dir", str(saves),
                   coordinator_flags=("--lease", str(LEASE_SECONDS)))
    try:
        made.start(*((losses(NODES_CALLS), {1: losses(WORKERS_CALLS)}) if lose else ()))
        runs = pools(WORKERS).run(train, made.addresses(WORKERS), "lost-answers")
        if not lose:
            return runs
        deadline = time.monotonic() + PATIENCE_SECONDS
        at_the_end = {"CoordinatorService/Leave"}
        meanwhile = {call: times for call, times in NODES_CALLS.items() if call not in at_the_end}
        while missing := not_lost(meanwhile, made.coordinator_log()):
            assert time.monotonic() < deadline, (missing, made.log())
            time.sleep(0.05)
        made.stop()
        assert not_lost(NODES_CALLS, made.coordinator_log()) + not_lost(WORKERS_CALLS, made.nodes[1].log()) == []
        return runs
    finally:
        made.close()


def test_a_lost_answer_changes_no_bit_and_is_no_second_time(pools, tmp_path):
    calm, lossy = run(pools, tmp_path, lose=False), run(pools, tmp_path, lose=True)
    assert all(bits(worker["params"]) == bits(calm[0]["params"]) for worker in lossy)
    # What each node has orthogonalised in all: a step that was applied twice would count.
    assert [worker["calls"] for worker in lossy] == [worker["calls"] for worker in calm]


def test_an_operator_may_ask_again(job, tmp_path):
    made = Daemon("--checkpoint-dir", str(tmp_path), "--node-id", "only")
    model = torch.nn.ParameterDict({"w": torch.nn.Parameter(torch.ones(4, 6))})
    try:
        made.start(losses(OPERATORS_CALLS))
        with dmuon.Muon(model, job=job, address=made.address, verbose=False):
            for verb, gone in (("save", None), ("delete", "no checkpoint")):
                for name in ("one", "two"):
                    lost = made.ctl("checkpoint", verb, job, name, check=False)
                    assert lost.returncode != 0 and "a failpoint has lost the answer" in lost.stderr
                    again = made.ctl("checkpoint", verb, job, name, check=False)
                    assert again.returncode == 0 if gone is None else gone in again.stderr
                listed = made.ctl("checkpoint", "list", job).stdout
                assert ("one" in listed and "two" in listed) == (verb == "save")
        for verb in ("drain", "undrain"):
            assert "a failpoint has lost the answer" in made.ctl(verb, "only", check=False).stderr
            made.ctl(verb, "only")
        assert not_lost(OPERATORS_CALLS, made.log()) == []
        assert made.stop() == 0
    finally:
        made.close()


def test_every_call_that_changes_something_has_a_case():
    """As the daemon lists them, by the descriptors of its services."""
    refused = subprocess.run([program("dmuond"), "--standalone"], env=with_failpoints("nowhere=lose"), check=False,
                             capture_output=True, text=True, timeout=60)
    known = {name for name in re.search(r"there are: (.*)", refused.stderr)[1].split(", ") if "/" in name}
    cases = set(WORKERS_CALLS) | set(NODES_CALLS) | set(OPERATORS_CALLS)
    assert known - READ_ONLY == cases
    assert known >= READ_ONLY
