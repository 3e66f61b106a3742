# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""HSDP of 2 x 2 workers on two nodes of one machine: the service against what is done without it.

    service   FSDP2 on the shard dimension; the service reduces over the replicas and runs Muon
    handover  the same with sync=False and backward_passes_per_step=1: the next forward waits, each group for
              its own parameters, and gradients leave during backward
    gather    HSDP by FSDP2, then Muon in fp32 on gathered gradients (full_tensor) on every worker
    adamw     HSDP by FSDP2, then torch.optim.AdamW (fused) for all parameters

All four train the quickstart model, taking turns in the same 4 workers. A step is forward, backward
and optimizer; each ends when it has on every worker. What Newton-Schulz costs beside forward and backward is at
most T m / B of their flops (Jordan et al., "Muon", 2024): T iterations, m the shorter side of a matrix, B tokens a
step. Here that is 5 x 256 / 16,384 = 8 % with the larger batch and 62 % with the smaller; 0.7 % in NanoGPT (768;
524,288), 0.5 % in Llama 405B (16,384; 16 million).

exposed_publish: what links of 1 Gbit/s between the nodes (namespaces and tc tbf, where that is permitted) add
to the time that forwards wait, over the time that the bytes of a publication take on such a link. HSDP by
FSDP2, so that nothing but new parameters crosses; links limited and not take turns.

hidden_reduce: by how much step() is shorter on such links where gradients leave during backward, over the time
that the gradients take on the link; from the last worker's call of step() to its end, the two taking turns.
"""

import argparse
import contextlib
import json
import pathlib
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import step_bench  # noqa: E402  (finds the folders below)
import dmuon_client as dmuon  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import trainers  # noqa: E402
from dmuon_fixtures import Cluster, Network  # noqa: E402
from gpt import GPT  # noqa: E402
from plain_muon import PlainMuon  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh  # noqa: E402
from torch.distributed.fsdp import FSDPModule, fully_shard  # noqa: E402
from worker_pool import WorkerPool  # noqa: E402

NODES, WORKERS = 2, 4
WAYS = ("service", "handover", "gather", "adamw")
LINK_BITS = 1e9  # a second
# Of the exposed part: steps before and in a turn's measurement, and a batch whose forward takes longer than
# a publication.
WARM, MEASURED, ROWS = 1, 3, 8
BATCHES = {"": 32, "_small_batch": 4}  # rows of 128 tokens a worker and step


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
         rounds: int, rows: int) -> dict[str, object]:
    whole = trainers.mesh_of(world_size // NODES)
    models = {way: sharded(whole["shard"] if way in ("service", "handover") else whole) for way in WAYS}
    torch.manual_seed(rank)
    tokens = torch.randint(256, (rows, 129))
    common = dict(lr=1e-4, adamw=dict(lr=1e-5), mesh=whole, address=addresses[rank], verbose=False)
    with (dmuon.Muon(models["service"], job=job, **common) as opt,
          dmuon.Muon(models["handover"], job=f"{job}-handover", sync=False, backward_passes_per_step=1, **common) as handover):
        gather = ReplicaGather(models["gather"], opt.routes(), whole["shard"])
        adamw = torch.optim.AdamW(models["adamw"].parameters(), lr=1e-5, fused=True)
        updates = {"service": opt.step, "handover": handover.step, "gather": gather.step, "adamw": adamw.step}
        times: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
        sent = []
        for turn in range(rounds + 1):
            for way in WAYS:
                if way == "handover":  # so that there is a step whose end this one's forward pays for
                    one_step(models[way], tokens, updates[way])
                measured = one_step(models[way], tokens, updates[way])
                handover.wait()
                if turn > 0:  # the first one warms up
                    times[way].append(measured)
            dist.barrier()
            sent.append(sent_bytes(metrics, job) if rank == 0 else 0.0)
            dist.barrier()
    return {"times": times, "sent": sent, "parameters": sum(p.numel() for p in GPT().parameters())}


def limit_links(namespaces: list[str], limited: bool) -> None:
    for name in namespaces:
        change = (["replace", "dev", "eth0", "root", "tbf", "rate", f"{LINK_BITS:.0f}bit", "burst", "128kb",
                   "latency", "100ms"] if limited else ["delete", "dev", "eth0", "root"])
        subprocess.run(["tc", "-n", name, "qdisc", *change], check=True)


def exposed(rank: int, world_size: int, addresses: list[str], job: str, rounds: int,
            namespaces: list[str]) -> dict[bool, list[tuple[float, float]]]:
    """Seconds of forwards without their waits, and of the waits, by whether links are limited."""
    model = sharded(trainers.mesh_of(world_size // NODES))
    torch.manual_seed(rank)
    tokens = torch.randint(256, (ROWS, 129))
    found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    with dmuon.Muon(model, lr=1e-4, adamw=dict(lr=1e-5), sync=False, job=job, address=addresses[rank],
                    verbose=False) as opt:
        for _ in range(rounds):
            for limited in (True, False):
                dist.barrier()
                if rank == 0:
                    limit_links(namespaces, limited)
                dist.barrier()
                for step in range(WARM + MEASURED):
                    started = time.perf_counter()
                    loss = model(tokens[:, :-1], tokens[:, 1:])
                    waited = opt.exposed_seconds
                    if step >= WARM:
                        found[limited].append((time.perf_counter() - started - waited, waited))
                    loss.backward()
                    opt.step()
                    model.zero_grad()
                opt.wait()
    return found


def reduced(rank: int, world_size: int, addresses: list[str], job: str, rounds: int,
            namespaces: list[str]) -> dict[str, list[float]]:
    """Seconds of step() on limited links, gradients leaving in step() and during backward."""
    whole = trainers.mesh_of(world_size // NODES)
    torch.manual_seed(rank)
    tokens = torch.randint(256, (ROWS, 129))
    found: dict[str, list[float]] = {"step": [], "backward": []}
    with contextlib.ExitStack() as stack:
        trained = {}
        for way in found:
            model = sharded(whole["shard"])
            passes = 1 if way == "backward" else None
            trained[way] = model, stack.enter_context(dmuon.Muon(
                model, lr=1e-4, adamw=dict(lr=1e-5), mesh=whole, backward_passes_per_step=passes, job=f"{job}-{way}",
                address=addresses[rank], verbose=False))
        dist.barrier()
        if rank == 0:
            limit_links(namespaces, True)
        for turn in range(WARM + rounds * MEASURED):
            for way, (model, opt) in trained.items():
                dist.barrier()
                model(tokens[:, :-1], tokens[:, 1:]).backward()
                started = time.perf_counter()
                opt.step()
                if turn >= WARM:
                    found[way].append(time.perf_counter() - started)
                model.zero_grad()
        if rank == 0:
            limit_links(namespaces, False)
        dist.barrier()
    return found


def sent_bytes(metrics: list[str], job: str) -> float:
    """Payload that the nodes have sent to each other for the job."""
    total = 0.0
    for address in metrics:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith("dmuon_exchange_bytes_total{") and f'job_id="{job}"' in line and "sent" in line:
                    total += float(line.rsplit(" ", 1)[1])
    return total


def network_permitted() -> bool:
    try:
        Network(NODES).close()
    except pytest.skip.Exception:
        return False
    return True


def in_namespaces(part: Callable, rounds: int, overlap: str = "--overlap") -> list:
    """What `part` returns in each worker, the nodes in namespaces of their own."""
    network = Network(NODES)
    cluster = Cluster(NODES, "--slots", "1", "--threads-per-slot", "1", overlap, network=network)
    try:
        cluster.start()
        with WorkerPool(WORKERS) as pool:
            return pool.run(part, cluster.addresses(WORKERS), part.__name__, rounds,
                            [network.namespace(node) for node in range(NODES)], timeout=900)
    finally:
        cluster.close()
        network.close()


def transfer_seconds() -> float:
    """Of the half of all parameters, or gradients, that each node sends to the other, in fp32."""
    return 4 * sum(p.numel() for p in GPT().parameters()) / NODES * 8 / LINK_BITS


def measure_exposed(rounds: int, overlap: str) -> dict[str, float]:
    runs = in_namespaces(exposed, rounds, overlap)
    wait = {limited: statistics.median(step_bench.slowest([[w for _, w in run[limited]] for run in runs]))
            for limited in (False, True)}
    forward = statistics.median(step_bench.slowest([[f for f, _ in run[True]] for run in runs]))
    publish = transfer_seconds()
    return {"publish_s": publish, "forward_s": forward, "wait_limited_s": wait[True], "wait_s": wait[False],
            "exposed": (wait[True] - wait[False]) / publish}


def measure_reduced(rounds: int) -> dict[str, float]:
    runs = in_namespaces(reduced, rounds)
    # The last worker to call is the one that waits the shortest.
    seconds = {way: statistics.median(map(min, zip(*(run[way] for run in runs), strict=True))) for way in runs[0]}
    reduce = transfer_seconds()
    return {"reduce_s": reduce, "step_s": seconds["step"], "backward_s": seconds["backward"],
            "hidden": (seconds["step"] - seconds["backward"]) / reduce}


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):8.3f}  ({min(values):.3f} to {max(values):.3f})"


def measure_steps(rounds: int, batch: str, batch_rows: int, rows: list, summary: dict[str, float]) -> None:
    cluster = Cluster(NODES, "--slots", "1", "--threads-per-slot", "1")
    try:
        cluster.start()
        metrics = [node.status()["node"]["metrics_address"] for node in cluster.nodes]
        with WorkerPool(WORKERS) as pool:
            runs = pool.run(work, cluster.addresses(WORKERS), metrics, "hsdp", rounds, batch_rows, timeout=900)
    finally:
        cluster.close()
    seconds, optimizer = ({way: [max(run["times"][way][turn][part] for run in runs) for turn in range(rounds)]
                           for way in WAYS} for part in (0, 1))
    tokens = batch_rows * 128 * WORKERS
    rows += [{"way": way, "tokens": tokens, "turn": turn, "step_s": seconds[way][turn], "optimizer_s": optimizer[way][turn]}
             for way in WAYS for turn in range(rounds)]
    print(f"{tokens} tokens a step")
    for way in WAYS:
        print(f"{way:8} step {spread(seconds[way])} s   optimizer {spread(optimizer[way])} s")
    vs_gather = [g / s for g, s in zip(optimizer["gather"], optimizer["service"], strict=True)]
    vs_adamw, sync_vs_adamw = ([s / a for s, a in zip(seconds[way], seconds["adamw"], strict=True)]
                               for way in ("handover", "service"))
    sent = runs[0]["sent"]
    # A replica a node, reduced by the service: each element's gradient and parameter cross once, in fp32.
    bound = 8.0 * (NODES - 1) * runs[0]["parameters"]
    wire = (sent[-1] - sent[0]) / rounds / bound
    target = "(target 1.10)" if not batch else ""
    print(f"optimizer: gather / service   {spread(vs_gather)}   (target 4)\n"
          f"step: handover / adamw        {spread(vs_adamw)}   {target}\n"
          f"step: service / adamw         {spread(sync_vs_adamw)}\n"
          f"bytes on the wire / bound     {wire:8.4f}   (target 1.02)\n")
    summary |= {f"{name}{batch}": value for name, value in (
        ("optimizer_vs_gather", statistics.median(vs_gather)), ("step_vs_adamw", statistics.median(vs_adamw)),
        ("step_sync_vs_adamw", statistics.median(sync_vs_adamw)), ("wire_vs_bound", wire))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=pathlib.Path, help="writes rows and summary")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--exposed-rounds", type=int, default=8, help="of the parts with limited links")
    args = parser.parse_args()
    rows, summary = [], {}
    for batch, batch_rows in BATCHES.items():
        measure_steps(args.rounds, batch, batch_rows, rows, summary)
    if network_permitted():
        for name, flag in (("exposed_publish", "--overlap"), ("exposed_publish_serial", "--no-overlap")):
            part = measure_exposed(args.exposed_rounds, flag)
            summary[name] = part["exposed"]
            rows.append({"way": name, **part})
            print(f"{name:24} {part['exposed']:8.3f}   (forward {part['forward_s']:.3f} s + wait {part['wait_s']:.3f} s, "
                  f"{part['wait_limited_s']:.3f} s on 1 Gbit/s; publication {part['publish_s']:.3f} s)")
        part = measure_reduced(args.exposed_rounds)
        summary["hidden_reduce"] = part["hidden"]
        rows.append({"way": "hidden_reduce", **part})
        print(f"{'hidden_reduce':24} {part['hidden']:8.3f}   (step() {part['step_s']:.3f} s, {part['backward_s']:.3f} s where "
              f"gradients leave during backward; they take {part['reduce_s']:.3f} s)")
    else:
        print("exposed_publish: not measured, network namespaces are not permitted here")
    if args.json:
        args.json.write_text(json.dumps({"rows": rows, "summary": summary}, indent=2) + "\n")


if __name__ == "__main__":
    main()
