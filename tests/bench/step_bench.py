# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""What a step through the service costs beside its arithmetic, and against gathering in the trainer.

    control   a whole step() of 20 tiny matrices and 2 workers, from the end of one to the end of the next,
              minus the daemon's kernel time. On one slot: where slots share the clock, seconds of a stage
              are not seconds of a step. Half of the turns come before the gather part, half after it. Where
              the machine is a virtual one whose host takes its cores away (steal in /proc/stat), waking a
              thread takes as long as the host likes: turns that lost more than a hundredth are made again,
              and do not count unless there are too few others. The median of all is printed beside it
    gather    the optimizer step of the quickstart model against torch.optim.Muon on gathered
              gradients (full_tensor) in the same 2 workers, taking turns; and against the same with
              Newton-Schulz in fp32, because torch's is bf16, which is slow on CPUs without such a unit
    outside   share of the daemon's step that none of the seven stages accounts for
"""

import argparse
import contextlib
import dataclasses
import itertools
import json
import pathlib
import statistics
import sys
import time
import urllib.request

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

ROOT = pathlib.Path(__file__).resolve().parents[2]
for folder in ("client/python", "client/examples", "tests/support", "tests/e2e"):
    sys.path.insert(0, str(ROOT / folder))

import dmuon_client as dmuon  # noqa: E402
import trainers  # noqa: E402
from dmuon_fixtures import Daemon  # noqa: E402
from gpt import GPT  # noqa: E402
from plain_muon import PlainMuon  # noqa: E402
from worker_pool import WorkerPool  # noqa: E402

WORKERS = 2
TINY = {f"w{i}": (16, 16) for i in range(20)}
CONTROL_TURNS, MOST_CONTROL_TURNS = 5, 15  # before and after the gather part
MOST_STOLEN = 0.01  # of the cores' time, by the host
KERNEL_STAGES = ("orthogonalize", "apply")


def timed(work) -> float:
    """Seconds of `work` on this worker, all workers starting together."""
    dist.barrier()
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def control(rank: int, world_size: int, address: str, metrics: str, job: str,
            steps: int) -> dict[str, object]:
    """When each step has ended on this worker. They are back to back: workers leave a barrier of Gloo up to
    half a millisecond one after the other, and the step would be charged with it."""
    ends = []
    bag = trainers.Bag(trainers.random_tensors(TINY, 0), "rows")
    bag.feed(trainers.random_tensors(TINY, 1))
    with dmuon.Muon(bag, job=job, address=address, verbose=False) as opt:
        for _ in range(20):
            opt.step()
        dist.barrier()
        for _ in range(steps):
            opt.step()
            ends.append(time.monotonic())  # one clock for all processes
        dist.barrier()
        seen = metrics_of(metrics, job) if rank == 0 else {}
        dist.barrier()
    return {"ends": ends, "metrics": seen}


def metrics_of(metrics: str, job: str) -> dict[str, float]:
    """Seconds of each stage, of whole steps, and the number of steps, since the job's start."""
    with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith("#") or f'job_id="{job}"' not in line:
            continue
        name, value = line.rsplit(" ", 1)
        if name.startswith("dmuon_stage_seconds_total{"):
            found[name.split('stage="')[1].split('"')[0]] = float(value)
        elif name.startswith("dmuon_step_duration_seconds_sum"):
            found["whole"] = float(value)
        elif name.startswith("dmuon_step_duration_seconds_count"):
            found["steps"] = float(value)
    return found


class Gather:
    """Muon inside the trainer: gather each gradient and weight, orthogonalise everything on every
    worker, keep the own rows. AdamW works on the shards."""

    def __init__(self, model: torch.nn.Module, routes: dict[str, str], muon: type) -> None:
        named = dict(model.named_parameters())
        self._sharded = [named[n] for n, r in routes.items() if r == "muon"]
        rest = [named[n] for n, r in routes.items() if r == "adamw"]
        self._whole = [torch.nn.Parameter(p.full_tensor().detach().clone()) for p in self._sharded]
        self._muon = muon(self._whole, lr=1e-4)
        self._adamw = torch.optim.AdamW(rest, lr=1e-5)
        self._place, self._places = dist.get_rank(), dist.get_world_size()

    @torch.no_grad()
    def step(self) -> None:
        for shard, whole in zip(self._sharded, self._whole, strict=True):
            whole.grad = shard.grad.full_tensor()
        self._muon.step()
        for shard, whole in zip(self._sharded, self._whole, strict=True):
            rows = -(-whole.shape[0] // self._places)
            start = self._place * rows
            shard.to_local().copy_(whole[start:start + rows])
        self._adamw.step()


def sharded_gpt() -> torch.nn.Module:
    torch.manual_seed(1)
    model = GPT()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for p in model.parameters():
        assert isinstance(p, DTensor)
        p.grad = distribute_tensor(torch.randn(p.shape), mesh, p.placements)
    return model


def against_gather(rank: int, world_size: int, address: str, metrics: str, job: str,
                   rounds: int, torch_rounds: int) -> dict[str, object]:
    model = sharded_gpt()
    with dmuon.Muon(model, lr=1e-4, adamw=dict(lr=1e-5), job=job, address=address, verbose=False) as opt:
        plain, bf16 = (Gather(model, opt.routes(), muon) for muon in (PlainMuon, torch.optim.Muon))
        for optimizer in (opt, plain, bf16):
            optimizer.step()
        times: dict[str, list[float]] = {"service": [], "fp32": [], "torch": []}
        for turn in range(rounds):
            times["service"].append(timed(opt.step))
            times["fp32"].append(timed(plain.step))
            if turn < torch_rounds:
                times["torch"].append(timed(bf16.step))
        dist.barrier()
        seen = metrics_of(metrics, job) if rank == 0 else {}
        dist.barrier()
    return {**times, "metrics": seen}


def slowest(runs: list[list[float]]) -> list[float]:
    """Of each step; it has ended when it has on every worker."""
    return [max(times) for times in zip(*runs, strict=True)]


def metrics_address(daemon: Daemon) -> str:
    return daemon.status()["node"]["metrics_address"]


@dataclasses.dataclass(frozen=True)
class Turn:
    whole_us: float
    kernel_us: float
    stolen: float

    @property
    def overhead_us(self) -> float:
        return self.whole_us - self.kernel_us


def core_ticks() -> tuple[float, float]:
    """Of all cores since the start of the machine: what the host took, and all."""
    with open("/proc/stat", encoding="ascii") as stat:
        user, nice, system, idle, iowait, irq, softirq, stolen = map(float, stat.readline().split()[1:9])
    return stolen, user + nice + system + idle + iowait + irq + softirq + stolen


def control_turns(pool: WorkerPool, steps: int) -> list[Turn]:
    turns: list[Turn] = []
    with contextlib.closing(Daemon("--slots", "1", "--threads-per-slot", "1").start()) as daemon:
        for turn in range(MOST_CONTROL_TURNS):
            before = core_ticks()
            runs = pool.run(control, daemon.address, metrics_address(daemon), f"control-{turn}", steps)
            seen = runs[0]["metrics"]
            ends = slowest([run["ends"] for run in runs])
            stolen, passed = (after - former for after, former in zip(core_ticks(), before, strict=True))
            turns.append(Turn(statistics.median(b - a for a, b in itertools.pairwise(ends)) * 1e6,
                              sum(seen[stage] for stage in KERNEL_STAGES) / seen["steps"] * 1e6, stolen / passed))
            if sum(turn.stolen <= MOST_STOLEN for turn in turns) == CONTROL_TURNS:
                break
    return turns


def control_summary(turns: list[Turn]) -> dict[str, float]:
    by_stolen = sorted(turns, key=lambda turn: turn.stolen)
    quiet = sum(turn.stolen <= MOST_STOLEN for turn in turns)
    counted = by_stolen[:max(quiet, CONTROL_TURNS)]
    overhead_us = sorted(turn.overhead_us for turn in counted)
    return {"whole_us_p50": statistics.median(turn.whole_us for turn in counted),
            "kernel_us_mean": statistics.median(turn.kernel_us for turn in counted),
            "overhead_us_p50": statistics.median(overhead_us), "overhead_us_low": overhead_us[0],
            "overhead_us_high": overhead_us[-1], "turns": len(turns), "turns_counted": len(counted),
            "stolen_most": counted[-1].stolen,
            "overhead_us_p50_all_turns": statistics.median(turn.overhead_us for turn in turns)}


def measure_gather(pool: WorkerPool, daemon: Daemon, rounds: int, torch_rounds: int) -> dict[str, float]:
    runs = pool.run(against_gather, daemon.address, metrics_address(daemon), "gather", rounds, torch_rounds,
                    timeout=600)
    times = {key: slowest([run[key] for run in runs]) for key in ("service", "fp32", "torch")}
    seen = runs[0]["metrics"]
    in_stages = sum(v for k, v in seen.items() if k not in ("whole", "steps"))
    found = {f"{key}_ms_p50": statistics.median(values) * 1e3 for key, values in times.items()}
    for key in ("fp32", "torch"):
        ratios = sorted(s / g for s, g in zip(times["service"], times[key], strict=False))
        found |= {f"{key}_ratio_p50": statistics.median(ratios), f"{key}_ratio_low": ratios[len(ratios) // 10],
                  f"{key}_ratio_high": ratios[-1 - len(ratios) // 10]}
    return found | {"daemon_ms_mean": seen["whole"] / seen["steps"] * 1e3,
                    "outside_stages": 1.0 - in_stages / seen["whole"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=pathlib.Path, help="writes rows and summary")
    parser.add_argument("--steps", type=int, default=500, help="of each turn of the control part")
    parser.add_argument("--rounds", type=int, default=20, help="turns of the gather part")
    parser.add_argument("--torch-rounds", type=int, default=3, help="of them with torch.optim.Muon")
    args = parser.parse_args()
    with WorkerPool(WORKERS) as pool:
        turns = control_turns(pool, args.steps)
        daemon = Daemon("--slots", str(WORKERS), "--threads-per-slot", "1")
        with contextlib.closing(daemon.start()):
            gather = measure_gather(pool, daemon, args.rounds, args.torch_rounds)
        turns += control_turns(pool, args.steps)
    parts = {"control": control_summary(turns), "gather": gather}
    rows = [{"part": part, "what": what, "value": value}
            for part, values in parts.items() for what, value in values.items()]
    for row in rows:
        print(f"{row['part']:8}  {row['what']:16}  {row['value']:12.3f}")
    # Ratios are service time / gather time: below 1 the service is faster.
    summary = {
        "control_overhead_us_p50": parts["control"]["overhead_us_p50"],
        "optimizer_vs_gather": gather["torch_ratio_p50"],
        "optimizer_vs_gather_fp32": gather["fp32_ratio_p50"],
        "outside_stages": gather["outside_stages"],
    }
    control_part = parts["control"]
    print(f"\ncontrol overhead {control_part['overhead_us_p50']:.0f} us (target 1000; "
          f"{control_part['turns_counted']} turns from {control_part['overhead_us_low']:.0f} to "
          f"{control_part['overhead_us_high']:.0f}; {control_part['overhead_us_p50_all_turns']:.0f} us with the "
          f"{control_part['turns'] - control_part['turns_counted']} others, in which the host took more of the cores)")
    for key, name in (("torch", "torch.optim.Muon"), ("fp32", "Muon in fp32")):
        print(f"the service takes {gather[f'{key}_ratio_p50']:.3f} of the time of {name} after gathering (80 % of "
              f"turns from {gather[f'{key}_ratio_low']:.3f} to {gather[f'{key}_ratio_high']:.3f})")
    print(f"{100 * summary['outside_stages']:.1f} % of the daemon's step is outside the stages")
    if args.json:
        args.json.write_text(json.dumps({"rows": rows, "summary": summary}, indent=2) + "\n")


if __name__ == "__main__":
    main()
