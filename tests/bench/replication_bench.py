# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""What copies of the state on another node cost a trainer: two nodes of one machine, a slot and a worker each.

Three jobs without copies, with asynchronous and with synchronous ones train the same model, taking turns in the same
workers. A step is forward, backward and optimizer; it ends when it has on every worker. overhead: a turn's step with
copies over the same turn's without.

    train   the quickstart model, 32 rows of 128 tokens a worker
    bare    one layer's matrices of GPT-2 with random gradients: the optimizer's step alone, nothing to hide copies behind
"""

import argparse
import contextlib
import json
import pathlib
import statistics
import sys
import time
from collections.abc import Callable

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import cost_bench  # noqa: E402  (finds the folders below)
import dmuon_client as dmuon  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from dmuon_fixtures import Cluster  # noqa: E402
from gpt import GPT  # noqa: E402
from hsdp_bench import spread  # noqa: E402
from worker_pool import WorkerPool  # noqa: E402

NODES = WORKERS = 2
WAYS = ("none", "async", "sync")
ROWS = 32
TARGETS = {"async": 1.10, "sync": 1.25}


def training(rank: int) -> tuple[torch.nn.Module, Callable[[], None]]:
    torch.manual_seed(1)
    model = GPT()
    torch.manual_seed(rank)
    tokens = torch.randint(256, (ROWS, 129))
    return model, lambda: model(tokens[:, :-1], tokens[:, 1:]).backward()


def bare(rank: int) -> tuple[torch.nn.Module, Callable[[], None]]:
    layer = {"qkv": (2304, 768), "out": (768, 768), "up": (3072, 768), "down": (768, 3072)}
    model = cost_bench.matrices(1, layer, 8192, 768)

    def backward() -> None:
        for p in model.parameters():
            p.grad = torch.randn_like(p)

    return model, backward


MODELS = {"train": training, "bare": bare}


def work(rank: int, world_size: int, addresses: list[str], kind: str, rounds: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    with contextlib.ExitStack() as stack:
        trained = {}
        for way in WAYS:
            model, backward = MODELS[kind](rank)
            opt = stack.enter_context(dmuon.Muon(model, lr=1e-4, adamw={"lr": 1e-5}, reduced=False, job=f"{kind}-{way}",
                                                 address=addresses[rank], replication=way, verbose=False, autotune="off"))
            trained[way] = model, backward, opt
        for turn in range(rounds + 1):
            for way, (model, backward, opt) in trained.items():
                if kind == "bare":
                    backward()
                dist.barrier()
                started = time.perf_counter()
                if kind == "train":
                    backward()
                opt.step()
                dist.barrier()
                if turn > 0:  # the first one warms up
                    found[way].append(time.perf_counter() - started)
                model.zero_grad()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=pathlib.Path, help="write rows and summary to this file")
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    rows, summary = [], {}
    for kind in MODELS:
        cluster = Cluster(NODES, "--slots", "1", "--threads-per-slot", "1", "--memory-limit", "4")
        try:
            cluster.start()
            with WorkerPool(WORKERS) as pool:
                runs = pool.run(work, cluster.addresses(WORKERS), kind, args.rounds, timeout=900)
        finally:
            cluster.close()
        seconds = {way: [max(run[way][turn] for run in runs) for turn in range(args.rounds)] for way in WAYS}
        rows += [{"model": kind, "way": way, "turn": turn, "step_s": s} for way in WAYS for turn, s in enumerate(seconds[way])]
        print(f"{kind}: without copies {spread(seconds['none'])} s")
        for way in ("async", "sync"):
            overhead = [with_ / without for with_, without in zip(seconds[way], seconds["none"], strict=True)]
            target = f"(target {TARGETS[way]})" if kind == "train" else ""
            print(f"{kind}: {way:5} / none     {spread(overhead)}   {target}")
            summary[f"{way}_overhead" + ("" if kind == "train" else f"_{kind}")] = statistics.median(overhead)
    if args.json:
        args.json.write_text(json.dumps({"rows": rows, "summary": summary}, indent=1) + "\n")


if __name__ == "__main__":
    main()
