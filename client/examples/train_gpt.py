# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""Trains a byte-level GPT on the Python standard library with its optimizer in the service.

    torchrun --nproc-per-node 2 client/examples/train_gpt.py --steps 150

Killed and started again with the same --job, it goes on where the service is.
"""

import argparse
import copy
import json
import os
import pathlib
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
import dmuon_client as dmuon  # noqa: E402
from gpt import GPT, batch_of, library_text  # noqa: E402
from plain_muon import PlainPair, largest_difference  # noqa: E402

MUON_LR, ADAMW_LR, WEIGHT_DECAY = 0.02, 3e-3, 0.01


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch", type=int, default=4, help="sequences a worker and step")
    parser.add_argument("--context", type=int, default=128, help="bytes a sequence")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--optimizer", choices=("muon", "adamw"), default="muon")
    parser.add_argument("--parallel", choices=("zero3", "zero2", "ddp", "hsdp"), default="zero3",
                        help="hsdp: a replica a node; the service reduces over the replicas")
    parser.add_argument("--parity-steps", type=int, default=5,
                        help="steps that rank 0 compares with plain PyTorch")
    parser.add_argument("--job", help="job id; default: DMUON_JOB, else a fresh one")
    parser.add_argument("--checkpoints", type=int, metavar="N",
                        help="a checkpoint after every N steps, and one named 'last' at the end; needs dmuond --checkpoint-dir")
    parser.add_argument("--replication", choices=("none", "async", "sync"), default="none",
                        help="copies of each daemon's state on another node; needs two nodes")
    parser.add_argument("--load", metavar="NAME", help="go on from this checkpoint of the job")
    parser.add_argument("--report", type=pathlib.Path, help="JSON file for the numbers")
    parser.add_argument("--plot", type=pathlib.Path, help="PNG file for the loss curve")
    return parser.parse_args()


def whole_mesh(how: str) -> DeviceMesh | None:
    """Of all workers, where FSDP gets a part of it only."""
    if how != "hsdp":
        return None
    shards = int(os.environ["LOCAL_WORLD_SIZE"])
    return init_device_mesh("cpu", (dist.get_world_size() // shards, shards),
                            mesh_dim_names=("replicate", "shard"))


def parallelize(model: GPT, how: str, whole: DeviceMesh | None) -> torch.nn.Module:
    if how == "ddp":
        return DistributedDataParallel(model)
    mesh = whole["shard"] if whole is not None else init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=how != "zero2")
    fully_shard(model, mesh=mesh, reshard_after_forward=how != "zero2")
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)  # Gloo has no averaging reduction
    return model


def full_parameters(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Whole parameters by name, on every rank."""
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    return {name: (p.full_tensor() if isinstance(p, DTensor) else p).detach()
            for name, p in inner.named_parameters()}


def lr_factor(step: int, steps: int) -> float:
    """Warm-up over ten steps, then a straight line down to a tenth."""
    return min(1.0, (step + 1) / 10) * (1.0 - 0.9 * step / max(1, steps))


class Parity:
    """The same training in plain PyTorch on one process, beside the real one, on rank 0."""

    def __init__(self, model: GPT, args: argparse.Namespace, text: torch.Tensor) -> None:
        self._model, self._args, self._text = model, args, text
        matrix = (lambda n: n.startswith("blocks.") and ".norm" not in n)
        self._optimizer = PlainPair(
            model, matrix if args.optimizer == "muon" else (lambda n: False), lr=MUON_LR,
            weight_decay=WEIGHT_DECAY, adamw={"lr": ADAMW_LR})
        self.largest = 0.0

    def step(self, step: int, params: dict[str, torch.Tensor]) -> None:
        batches = [batch_of(self._text, seed=self._args.seed, step=step, rank=rank,
                            batch=self._args.batch, context=self._args.context)
                   for rank in range(dist.get_world_size())]
        tokens, targets = (torch.cat(side) for side in zip(*batches, strict=True))
        self._optimizer.zero_grad()
        self._model(tokens, targets).backward()
        self._optimizer.set_lr_factor(lr_factor(step, self._args.steps))
        self._optimizer.step()
        own = {name: p.detach() for name, p in self._model.named_parameters()}
        self.largest = max(self.largest, largest_difference(params, own))


class Meter:
    """Losses (mean over workers) and milliseconds of each step."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.step_ms: list[float] = []
        self.optimizer_ms: list[float] = []

    def add(self, loss: torch.Tensor, started: float, before: float, after: float) -> dict[str, str]:
        shown = loss.detach().clone()
        dist.all_reduce(shown)
        self.losses.append(shown.item() / dist.get_world_size())
        self.step_ms.append((time.perf_counter() - started) * 1000)
        self.optimizer_ms.append((after - before) * 1000)
        return {"loss": f"{self.losses[-1]:.3f}", "step": f"{self.step_ms[-1]:.0f} ms",
                "optimizer": f"{100 * self.optimizer_ms[-1] / self.step_ms[-1]:.0f} %"}


def train_step(model: torch.nn.Module, opt: dmuon.Muon, text: torch.Tensor, step: int,
               args: argparse.Namespace, meter: Meter) -> dict[str, str]:
    """One step; what the progress bar shows of it."""
    started = time.perf_counter()
    for group in opt.param_groups:
        group["lr"] = group.setdefault("initial_lr", group["lr"]) * lr_factor(step, args.steps)
    tokens, targets = batch_of(text, seed=args.seed, step=step, rank=dist.get_rank(), batch=args.batch,
                               context=args.context)
    loss = model(tokens, targets)
    loss.backward()
    dist.barrier()  # so that waiting for the slower worker is not booked on the optimizer
    before = time.perf_counter()
    opt.step()
    after = time.perf_counter()
    opt.zero_grad()
    return meter.add(loss, started, before, after)


def train(args: argparse.Namespace) -> dict | None:
    """The report, on rank 0."""
    rank = dist.get_rank()
    torch.manual_seed(args.seed)
    text = library_text()
    model = GPT(context=args.context)
    plain = copy.deepcopy(model) if rank == 0 else None
    whole = whole_mesh(args.parallel)
    model = parallelize(model, args.parallel, whole)
    rules = [dmuon.Rule("adamw", name="*")] if args.optimizer == "adamw" else []
    opt = dmuon.Muon(model, lr=MUON_LR, weight_decay=WEIGHT_DECAY, adamw=dict(lr=ADAMW_LR),
                     rules=rules, job=args.job, mesh=whole, checkpoint_every_steps=args.checkpoints, replication=args.replication)
    if args.load:
        opt.load(args.load)
    from_the_beginning = not opt.resumed and not args.load
    parity = Parity(plain, args, text) if rank == 0 and from_the_beginning else None
    parity_steps = args.parity_steps if from_the_beginning else 0
    meter = Meter()
    bar = tqdm(range(opt.last_step, args.steps), initial=opt.last_step, total=args.steps,
               disable=rank != 0, unit="step", mininterval=0.5)
    for step in bar:
        bar.set_postfix(train_step(model, opt, text, step, args, meter), refresh=False)
        if step < parity_steps:
            params = full_parameters(model)
            if parity:
                parity.step(step, params)
            dist.barrier()
    calls, matrices = of_all_nodes(opt.result.newton_schulz_calls if opt.result else 0, opt.plan.matrix_units)
    report = report_of(opt, meter, parity, args) if rank == 0 and meter.losses else None
    if report:
        report |= {"ns_calls": calls, "matrices": matrices}
    if args.checkpoints:
        opt.save("last", wait=True)
    opt.close()
    return report


def of_all_nodes(*counts: int) -> list[int]:
    """Sums of what each node counts; every node has one daemon."""
    mine = torch.tensor(counts if os.environ["LOCAL_RANK"] == "0" else [0] * len(counts))
    dist.all_reduce(mine)
    return mine.tolist()


def report_of(opt: dmuon.Muon, meter: Meter, parity: Parity | None, args: argparse.Namespace) -> dict:
    last = meter.losses[-10:]
    return {
        "steps": len(meter.losses), "loss_first": meter.losses[0], "loss_last": sum(last) / len(last),
        "step_ms_p50": statistics.median(meter.step_ms),
        "optimizer_ms_p50": statistics.median(meter.optimizer_ms),
        "world_size": dist.get_world_size(), "parity_max_rel_diff": parity.largest if parity else None,
        "optimizer": args.optimizer, "parallel": args.parallel,
        "losses": meter.losses,
    }


def plot(report: dict, path: pathlib.Path) -> None:
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    axes.plot(range(1, len(report["losses"]) + 1), report["losses"])
    axes.set(xlabel="step", ylabel="loss (nats a byte)",
             title=f"{report['optimizer']} through dmuon, {report['world_size']} workers")
    axes.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def summarize(report: dict, args: argparse.Namespace) -> None:
    share = report["optimizer_ms_p50"] / report["step_ms_p50"]
    parity = report["parity_max_rel_diff"]
    print(f"\nloss        {report['loss_first']:.3f} -> {report['loss_last']:.3f} (mean of the last ten) "
          f"in {report['steps']} steps\n"
          f"step        {report['step_ms_p50']:.0f} ms, of which the optimizer "
          f"{report['optimizer_ms_p50']:.0f} ms ({100 * share:.0f} %); medians\n"
          f"Newton-Schulz {report['ns_calls']} calls for {report['matrices']} matrices")
    if parity is not None:
        print(f"parity      largest relative difference to plain PyTorch in the first steps: {parity:.1e}")
    if args.plot:
        plot(report, args.plot)
        print(f"loss curve  {args.plot}")
    if args.report:
        numbers = {key: value for key, value in report.items() if key != "losses"}
        args.report.write_text(json.dumps(numbers, indent=2) + "\n")
        print(f"report      {args.report}")


def main() -> None:
    args = parse_arguments()
    dist.init_process_group("gloo")
    report = train(args)
    if report:
        summarize(report, args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
