# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""How near a plan's prices are to what its slots then take: seconds from collected gradients to new weights, of every
slot in every step, against the sum of its units' prices.

Three models, one worker, a daemon with a slot a core, everything measured anew when the job registers. Gradients are
random numbers. The prices by operation counts, which a job without measurements is planned with, are beside them.
"""

import argparse
import contextlib
import json
import pathlib
import re
import statistics
import sys
import time

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
for folder in ("client/python", "client/examples", "tests/support"):
    sys.path.insert(0, str(ROOT / folder))

import dmuon_client as dmuon  # noqa: E402
from dmuon_fixtures import Daemon  # noqa: E402
from gpt import GPT  # noqa: E402

TARGET = 0.15


def quickstart() -> torch.nn.Module:
    return GPT()


def matrices(layers: int, layer: dict[str, tuple[int, int]], vocabulary: int, width: int) -> torch.nn.Module:
    """The parameters of a model without its forward."""
    model = torch.nn.Module()
    model.wte = torch.nn.Embedding(vocabulary, width)
    model.blocks = torch.nn.ModuleList()
    for _ in range(layers):
        block = torch.nn.Module()
        for name, shape in layer.items():
            block.register_parameter(name, torch.nn.Parameter(torch.randn(shape) * 0.02))
        block.norm = torch.nn.LayerNorm(width)
        model.blocks.append(block)
    return model


def gpt2() -> torch.nn.Module:
    return matrices(12, {"qkv": (2304, 768), "out": (768, 768), "up": (3072, 768), "down": (768, 3072)}, 50257, 768)


def qwen() -> torch.nn.Module:
    """8 of Qwen2.5-0.5B's 24 layers."""
    return matrices(8, {"q": (896, 896), "k": (128, 896), "v": (128, 896), "o": (896, 896), "gate": (4864, 896),
                        "up": (4864, 896), "down": (896, 4864)}, 151936 // 3, 896)


MODELS = {"quickstart 3.3M": quickstart, "GPT-2 124M": gpt2, "Qwen2.5-0.5B/3": qwen}


def of_slots(daemon: Daemon, metric: str) -> list[float]:
    """By slot."""
    found = re.findall(rf'^{metric}{{job_id="job",slot="(\d+)"}} (\S+)$', daemon.metrics(), re.MULTILINE)
    return [float(value) for _, value in sorted(found, key=lambda pair: int(pair[0]))]


def run(model: torch.nn.Module, autotune: str, precision: str, steps: int) -> dict[str, object]:
    with contextlib.closing(Daemon("--slots", "2", "--threads-per-slot", "1", "--memory-limit", "16").start()) as daemon:
        started = time.perf_counter()
        with dmuon.Muon(model, job="job", address=daemon.address, verbose=False, autotune=autotune,
                        precision=precision) as opt:
            registered = time.perf_counter() - started
            planned = of_slots(daemon, "dmuon_slot_planned_seconds")
            ratios, seconds = [], []
            before = None
            for step in range(steps + 1):
                for p in model.parameters():
                    p.grad = torch.randn_like(p) if p.grad is None else p.grad
                opt.step()
                after = of_slots(daemon, "dmuon_slot_seconds_total")
                if before is not None:  # the first step touches its memory for the first time
                    taken = [b - a for a, b in zip(before, after, strict=True)]
                    ratios += [p / t for p, t in zip(planned, taken, strict=True)]
                    seconds.append(max(taken))
                before = after
    return {"register_s": registered, "planned_s": max(planned), "measured_s": statistics.median(seconds),
            "ratios": ratios, "error": statistics.median(abs(r - 1.0) for r in ratios)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=pathlib.Path, help="write rows and summary to this file")
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()

    rows, errors = [], {"on": [], "off": []}
    print(f"{'model':16} {'precision':>9} {'prices':>9} {'register':>9} {'planned':>9} {'measured':>9} "
          f"{'planned/measured':>24} {'error':>6}")
    for model, make in MODELS.items():
        for precision in ("fp32", "auto"):
            for autotune in ("on", "off"):
                torch.manual_seed(0)
                row = run(make(), autotune, precision, args.steps)
                errors[autotune] += [abs(r - 1.0) for r in row["ratios"]]
                rows.append({"model": model, "precision": precision, "autotune": autotune} | row)
                spread = sorted(row["ratios"])
                print(f"{model:16} {precision:>9} {'measured' if autotune == 'on' else 'formula':>9} "
                      f"{row['register_s']:7.1f} s {1e3 * row['planned_s']:6.1f} ms {1e3 * row['measured_s']:6.1f} ms "
                      f"{statistics.median(spread):10.2f} ({spread[0]:.2f} to {spread[-1]:.2f}) {row['error']:6.2f}", flush=True)
    summary = {"median_error": statistics.median(errors["on"]), "median_error_by_formula": statistics.median(errors["off"]),
               "target": TARGET}
    for name, value in summary.items():
        print(f"{name:26} {value:.3f}")
    if args.json:
        args.json.write_text(json.dumps({"rows": rows, "summary": summary}, indent=1))


if __name__ == "__main__":
    main()
