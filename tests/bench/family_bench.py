# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""The quickstart model trained by every optimizer of the family, and by torch.optim.AdamW alone, on the same
tokens for as many steps: the loss at the end, the time of a step, the bytes of optimizer state.

Each uses its published learning rate for the matrices (AdamW 3e-3, which is also that of the other tensors everywhere),
no weight decay, one worker. The loss is the mean over held-out text; curves of one seed differ by a few hundredths, so the
table tells a bug from a working optimizer, not a better optimizer from a worse one.
"""

import argparse
import json
import pathlib
import statistics
import sys
import time

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
for folder in ("client/python", "client/examples", "tests/support"):
    sys.path.insert(0, str(ROOT / folder))

import dmuon_client as dmuon  # noqa: E402
from dmuon_client.options import VARIANTS  # noqa: E402
from dmuon_fixtures import Daemon  # noqa: E402
from gpt import GPT, batch_of, library_text  # noqa: E402

REST_LR = 3e-3
BATCH, CONTEXT = 8, 128
HELD_OUT = 1 << 16  # bytes at the end of the text


def held_out_loss(model: GPT, text: torch.Tensor) -> float:
    rows = text[-HELD_OUT:].long()[:HELD_OUT // (CONTEXT + 1) * (CONTEXT + 1)].view(-1, CONTEXT + 1)[:128]
    with torch.no_grad():
        return model(rows[:, :-1], rows[:, 1:]).item()


def train(model: GPT, optimizer: torch.optim.Optimizer, text: torch.Tensor, steps: int) -> dict[str, float]:
    times = []
    first = held_out_loss(model, text)
    for step in range(steps):
        tokens, targets = batch_of(text[:-HELD_OUT], seed=0, step=step, rank=0, batch=BATCH, context=CONTEXT)
        model(tokens, targets).backward()
        started = time.perf_counter()
        optimizer.step()
        times.append(time.perf_counter() - started)
        optimizer.zero_grad()
    return {"before": first, "after": held_out_loss(model, text), "optimizer_ms": 1e3 * statistics.median(times)}


def state_bytes(daemon: Daemon, job: str) -> int:
    return int(next(j for j in daemon.status()["node"]["jobs"] if j["job_id"] == job)["state_bytes"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=pathlib.Path, help="write rows and summary to this file")
    parser.add_argument("--steps", type=int, default=150)
    args = parser.parse_args()
    text = library_text()
    rows = {}
    print(f"{'':16} {'lr':>6} {'loss before':>12} {'after':>7} {'optimizer ms':>13} {'state':>9}")
    daemon = Daemon().start()
    try:
        for name in ("adamw", *VARIANTS):
            torch.manual_seed(0)
            model = GPT()
            if name == "adamw":
                optimizer = torch.optim.AdamW(model.parameters(), lr=REST_LR, betas=(0.9, 0.95), weight_decay=0.0)
                rows[name] = {"lr": REST_LR, **train(model, optimizer, text, args.steps),
                              "state_bytes": 8 * sum(p.numel() for p in model.parameters())}
            else:
                with dmuon.Muon(model, variant=name, weight_decay=0.0, adamw=dict(lr=REST_LR), job=name, verbose=False,
                                address=daemon.address) as optimizer:
                    rows[name] = {"lr": VARIANTS[name].lr, **train(model, optimizer, text, args.steps)}
                    # Without the master weights, which torch keeps as the model.
                    rows[name]["state_bytes"] = state_bytes(daemon, name) - 4 * sum(p.numel() for p in model.parameters())
            r = rows[name]
            print(f"{name:16} {r['lr']:6} {r['before']:12.3f} {r['after']:7.3f} {r['optimizer_ms']:13.1f} "
                  f"{r['state_bytes'] / 1e6:6.1f} MB", flush=True)
    finally:
        daemon.close()
    summary = {"worst_minus_adamw": max(r["after"] for r in rows.values()) - rows["adamw"]["after"],
               "least_fall": min(r["before"] - r["after"] for r in rows.values())}
    for key, value in summary.items():
        print(f"{key:20} {value:.3f}")
    if args.json:
        args.json.write_text(json.dumps({"rows": rows, "summary": summary}, indent=1))


if __name__ == "__main__":
    main()
