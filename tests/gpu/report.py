# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""Times Newton-Schulz of the cuda backend against torch.optim.Muon's function (in bf16, as it is, and in fp32), and
that function compiled, on the same GPU, alternating; writes the report of tests/gpu/run.sh.

The backend's matrix lies in device memory. Each of its forms is timed; the faster one is what torch is compared with.
Its time is also taken without CUDA graphs, and where matrices are small enough for batches, for one of 8.
Without a torch that sees the GPU its columns are empty, and the report says why.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time
import xml.etree.ElementTree
from collections.abc import Callable

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "bench"))

from ns_process import FORMS, JORDAN, STEPS, Runner, needed_flops  # noqa: E402

SHAPES = {"GPT-2 124M": [(768, 768), (2304, 768), (3072, 768), (768, 3072)],
          "Qwen2.5-0.5B": [(896, 896), (128, 896), (4864, 896), (896, 4864)],
          "Qwen2.5-7B": [(3584, 3584), (512, 3584), (18944, 3584), (3584, 18944)],
          "square": [(1024, 1024), (2048, 2048), (4096, 4096)]}
PRECISIONS = ("bf16", "fp32")
ROUNDS = 7
BATCH, LARGEST_IN_BATCH = 8, 2**22


def torch_ways(precision: str) -> tuple[dict[str, Callable], str]:
    """Functions of a matrix's shape that return milliseconds, by name; or none, and why."""
    try:
        import torch
        from ns_bench import torch_newton_schulz
    except ImportError as error:
        return {}, str(error)
    if not torch.cuda.is_available():
        return {}, f"torch {torch.__version__} sees no GPU"
    function = torch_newton_schulz(precision)

    def timed(call: Callable) -> Callable:
        def run(rows: int, cols: int) -> float:
            x = torch.randn(rows, cols, device="cuda")
            torch.cuda.synchronize()
            start = time.perf_counter()
            call(x, JORDAN, STEPS, 1e-7)
            torch.cuda.synchronize()
            return 1e3 * (time.perf_counter() - start)
        return run

    return {"torch": timed(function), "torch_compiled": timed(torch.compile(function))}, ""


def measure(ways: dict[str, Callable], rows: int, cols: int) -> dict[str, dict[str, float]]:
    """Median and quartiles of each way, taken in turns after two that warm up: the second one captures graphs."""
    times = {name: [] for name in ways}
    for turn in range(ROUNDS + 2):
        for name, way in ways.items():
            ms = way(rows, cols)
            if turn > 1:
                times[name].append(ms)
    return {name: dict(zip(("low", "median", "high"), statistics.quantiles(values, n=4), strict=True))
            for name, values in times.items()}


def timings(deadline: float) -> tuple[list[dict], list[str]]:
    """Rows, and what is missing. Ends early, and says so, rather than after `deadline`."""
    runner, plain = Runner(), Runner(DMUON_CUDA_GRAPHS="off")
    rows, missing = [], []
    for precision in PRECISIONS:
        others, why = torch_ways(precision)
        if why:
            missing.append(f"{precision}: no torch: {why}")
        for model, shapes in SHAPES.items():
            for m, n in shapes:
                if time.monotonic() > deadline:
                    missing.append(f"{precision} {m}x{n}: no time left")
                    continue
                ours = {form: lambda r, c, form=form: runner("cuda", form, precision, 1, r, c) for form in FORMS}
                row = {"model": model, "rows": m, "cols": n, "precision": precision,
                       "ms": measure({**ours, **others}, m, n)}
                form = min(FORMS, key=lambda f: row["ms"][f]["median"])
                best = row["ms"][form]["median"]
                row["form"] = form
                row["tflops"] = needed_flops(form, m, n) / best / 1e9
                row["vs_torch"] = {name: row["ms"][name]["median"] / best for name in others}
                command = ("cuda", form, precision, 1)
                ways = {"no_graphs": lambda r, c, command=command: plain(*command, r, c)}
                if m * n <= LARGEST_IN_BATCH:
                    ways["batch"] = lambda r, c, command=command: runner(*command, r, c, BATCH)
                row["ms"] |= measure(ways, m, n)
                rows.append(row)
                print(f"{model:13} {f'{m}x{n}':>11} {precision} {form:>9} {best:9.3f} ms {row['tflops']:7.1f} TFLOP/s "
                      + "".join(f"{name} {row['ms'][name]['median']:.3f} ms " for name in ways)
                      + " ".join(f"{name} {ratio:.2f}" for name, ratio in row["vs_torch"].items()), flush=True)
    runner.close()
    plain.close()
    return rows, missing


def test_counts(path: pathlib.Path) -> dict[str, int]:
    suite = xml.etree.ElementTree.parse(path).getroot()
    return {name: int(suite.get(name, 0)) for name in ("tests", "failures", "skipped")}


def device() -> str:
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:
        return "unknown: there is no nvidia-smi"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", type=pathlib.Path, required=True, help="JUnit file of ctest -L gpu")
    parser.add_argument("--json", type=pathlib.Path, required=True, help="where the report goes")
    parser.add_argument("--seconds", type=float, default=75, help="no shape is begun after so many")
    args = parser.parse_args()
    report = {"device": device(), "tests": test_counts(args.tests)}
    report["rows"], report["missing"] = timings(time.monotonic() + args.seconds)
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(report, indent=1) + "\n")
    for line in report["missing"]:
        print(f"missing: {line}", file=sys.stderr)
    print(f"report: {args.json}")
    return 1 if any("no time left" in line for line in report["missing"]) else 0


if __name__ == "__main__":
    sys.exit(main())
