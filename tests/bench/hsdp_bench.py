# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""HSDP of 2 x 2 workers on two nodes of one machine: the service against what is done without it.

    service   FSDP2 on the shard dimension; the service reduces over the replicas and runs Muon
    gather    HSDP by FSDP2, then Muon in fp32 on gathered gradients (full_tensor) on every worker
    adamw     HSDP by FSDP2, then torch.optim.AdamW (fused) for all parameters

All three train the quickstart model, taking turns in the same 4 workers. A step is forward, backward
and optimizer; each ends when it has on every worker.
"""

import argparse
import json
import pathlib
import statistics
import sys
import time
import urllib.request
from collections.abc import Callable

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import step_bench  # noqa: E402  (finds the folders below)
import dmuon_client as dmuon  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import trainers  # noqa: E402
from dmuon_fixtures import Cluster  # noqa: E402
from gpt import GPT  # noqa: E402
from plain_muon import PlainMuon  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh  # noqa: E402
from torch.distributed.fsdp import FSDPModule, fully_shard  # noqa: E402
from worker_pool import WorkerPool  # noqa: E402

NODES, WORKERS = 2, 4
WAYS = ("service", "gather", "adamw")


class ReplicaGather(step_bench.Gather):
    """Gather, where a worker's rows are those of its place in the shard dimension."""

    def __init__(self, model: torch.nn.Module, routes: dict[str, str], shards: DeviceMesh) -> None:
        super().__init__(model, routes, PlainMuon)
        self._place, self._places = shards.get_local_rank(), shards.size()


def sharded(mesh: DeviceMesh) -> torch.nn.Module:
    torch.manual_seed(1)
    model = GPT()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
    return model


def one_step(model: torch.nn.Module, tokens: torch.Tensor, update: Callable[[], None]) -> tuple[float, float]:
    """Seconds of the whole step and of its optimizer, all workers starting both together."""
    dist.barrier()
    started = time.perf_counter()
    model(tokens[:, :-1], tokens[:, 1:]).backward()
    dist.barrier()
    before = time.perf_counter()
    update()
    ended = time.perf_counter()
    model.zero_grad()
    return ended - started, ended - before


def work(rank: int, world_size: int, addresses: list[str], metrics: list[str], job: str,
         rounds: int) -> dict[str, object]:
    whole = trainers.mesh_of(world_size // NODES)
    models = {"service": sharded(whole["shard"]), "gather": sharded(whole), "adamw": sharded(whole)}
    torch.manual_seed(rank)
    tokens = torch.randint(256, (4, 129))
    with dmuon.Muon(models["service"], lr=1e-4, adamw=dict(lr=1e-5), mesh=whole, job=job,
                    address=addresses[rank], verbose=False) as opt:
        gather = ReplicaGather(models["gather"], opt.routes(), whole["shard"])
        adamw = torch.optim.AdamW(models["adamw"].parameters(), lr=1e-5, fused=True)
        updates = {"service": opt.step, "gather": gather.step, "adamw": adamw.step}
        times: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
        sent = []
        for turn in range(rounds + 1):
            for way in WAYS:
                measured = one_step(models[way], tokens, updates[way])
                if turn > 0:  # the first one warms up
                    times[way].append(measured)
            dist.barrier()
            sent.append(sent_bytes(metrics, job) if rank == 0 else 0.0)
            dist.barrier()
    return {"times": times, "sent": sent, "parameters": sum(p.numel() for p in GPT().parameters())}


def sent_bytes(metrics: list[str], job: str) -> float:
    """Payload that the nodes have sent to each other for the job."""
    total = 0.0
    for address in metrics:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith("dmuon_exchange_bytes_total{") and f'job_id="{job}"' in line and "sent" in line:
                    total += float(line.rsplit(" ", 1)[1])
    return total


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):8.3f}  ({min(values):.3f} to {max(values):.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=pathlib.Path, help="writes rows and summary")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    cluster = Cluster(NODES, "--slots", "1", "--threads-per-slot", "1")
    try:
        cluster.start()
        metrics = [node.status()["node"]["metrics_address"] for node in cluster.nodes]
        with WorkerPool(WORKERS) as pool:
            runs = pool.run(work, cluster.addresses(WORKERS), metrics, "hsdp", args.rounds, timeout=900)
    finally:
        cluster.close()
    seconds = {way: [max(run["times"][way][turn][0] for run in runs) for turn in range(args.rounds)]
               for way in WAYS}
    optimizer = {way: [max(run["times"][way][turn][1] for run in runs) for turn in range(args.rounds)]
                 for way in WAYS}
    rows = [{"way": way, "turn": turn, "step_s": seconds[way][turn], "optimizer_s": optimizer[way][turn]}
            for way in WAYS for turn in range(args.rounds)]
    for way in WAYS:
        print(f"{way:8} step {spread(seconds[way])} s   optimizer {spread(optimizer[way])} s")
    vs_gather = [g / s for g, s in zip(optimizer["gather"], optimizer["service"], strict=True)]
    vs_adamw = [s / a for s, a in zip(seconds["service"], seconds["adamw"], strict=True)]
    sent = runs[0]["sent"]
    # A replica a node, reduced by the service: each element's gradient and parameter cross once, in fp32.
    bound = 8.0 * (NODES - 1) * runs[0]["parameters"]
    wire = (sent[-1] - sent[0]) / args.rounds / bound
    print(f"\noptimizer: gather / service   {spread(vs_gather)}   (target 4)\n"
          f"step: service / adamw         {spread(vs_adamw)}   (target 1.10)\n"
          f"bytes on the wire / bound     {wire:8.4f}   (target 1.02)")
    summary = {"optimizer_vs_gather": statistics.median(vs_gather), "step_vs_adamw": statistics.median(vs_adamw),
               "wire_vs_bound": wire}
    if args.json:
        args.json.write_text(json.dumps({"rows": rows, "summary": summary}, indent=2) + "\n")


if __name__ == "__main__":
    main()
