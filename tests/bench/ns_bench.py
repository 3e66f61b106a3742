# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""Newton-Schulz of the cpu backend against that of torch.optim.Muon (in bf16, as it is, and in fp32) and against
five steps of plain sgemm: the same shapes, cores and numbers of threads, alternating in one run; the backend in a
process of its own, so that two OpenMP runtimes do not meet.

A form of the backend is chosen for each shape, precision and number of threads by what a few runs take. `gemm` is
the share of the machine's best product of that precision (1024 x 1024, torch or OpenBLAS) that the form reaches,
counting the operations it needs: half of a symmetric product.

Targets: 1.35 for squares, 2.0 from an aspect of 4 on, both at equal precision; never slower; 0.8 of the product's rate.
"""

import argparse
import dataclasses
import inspect
import json
import math
import pathlib
import statistics
import time

import torch
from ns_process import FORMS, JORDAN, STEPS, Runner, needed_flops
from torch.optim import _muon

SHAPES = {"GPT-2 124M": [(768, 768), (2304, 768), (3072, 768), (768, 3072)],
          "Qwen2.5-0.5B": [(896, 896), (128, 896), (4864, 896), (896, 4864)],
          "square": [(512, 512), (1024, 1024), (2048, 2048)]}


def torch_newton_schulz(precision: str):
    """torch.optim.Muon's function; for fp32 its text without the cast."""
    if precision == "bf16":
        return _muon._zeropower_via_newtonschulz
    source = inspect.getsource(_muon._zeropower_via_newtonschulz)
    assert source.count(".bfloat16()") == 1, "torch.optim.Muon has changed: see what it casts"
    scope = dict(vars(_muon))
    exec(source.replace(".bfloat16()", ".float()"), scope)
    return scope["_zeropower_via_newtonschulz"]


def torch_ms(call, *arguments) -> float:
    start = time.perf_counter()
    call(*arguments)
    return 1e3 * (time.perf_counter() - start)


@dataclasses.dataclass
class Row:
    model: str
    rows: int
    cols: int
    threads: int
    precision: str
    form: str
    cpu_ms: float
    torch_ms: float
    blas_ms: float
    vs_torch: float  # medians of ratios of one turn
    vs_torch_low: float
    vs_torch_high: float
    gemm: float

    @property
    def aspect(self) -> float:
        return max(self.rows, self.cols) / min(self.rows, self.cols)


def measure(runner: Runner, model: str, shape: tuple[int, int], threads: int, precision: str, rounds: int,
            gemm_gflops: float) -> Row:
    x = torch.randn(shape)
    call = torch_newton_schulz(precision)
    trial = {form: min(runner("cpu", form, precision, threads, *shape) for _ in range(3)) for form in FORMS}
    form = min(FORMS, key=trial.get)
    times = {"cpu": [], "torch": [], "blas": []}
    for turn in range(rounds + 1):
        turn_ms = {"cpu": runner("cpu", form, precision, threads, *shape),
                   "torch": torch_ms(call, x, JORDAN, STEPS, 1e-7),
                   "blas": runner("blas", threads, *shape)}
        if turn > 0:  # the first one warms up
            for way, ms in turn_ms.items():
                times[way].append(ms)
    ratios = sorted(t / c for t, c in zip(times["torch"], times["cpu"], strict=True))
    ms = {way: statistics.median(values) for way, values in times.items()}
    return Row(model, *shape, threads, precision, form, ms["cpu"], ms["torch"], ms["blas"],
               statistics.median(ratios), ratios[len(ratios) // 4], ratios[3 * len(ratios) // 4],
               needed_flops(form, *shape) / ms["cpu"] / 1e6 / gemm_gflops)


def gemm_rate(runner: Runner, threads: int, precision: str) -> float:
    """GFLOP/s of the machine's best product."""
    n = 1024
    a = torch.randn(n, n).to(torch.bfloat16 if precision == "bf16" else torch.float32)
    ms = [torch_ms(torch.mm, a, a) for _ in range(15)]
    if precision == "fp32":
        ms += [runner("gemm", threads, n) for _ in range(15)]
    return 2 * n**3 / min(ms) / 1e6


def summarize(rows: list[Row]) -> dict[str, float]:
    def mean(values: list[float]) -> float:
        return math.exp(statistics.fmean(map(math.log, values)))

    fastest = []  # `auto`: our faster precision against torch's faster one
    for key in {(r.rows, r.cols, r.threads) for r in rows}:
        same = [r for r in rows if (r.rows, r.cols, r.threads) == key]
        fastest.append(min(r.torch_ms for r in same) / min(r.cpu_ms for r in same))
    squares = [r.vs_torch for r in rows if r.aspect == 1]
    wide = [r.vs_torch for r in rows if r.aspect >= 4]
    return {"geomean_vs_torch": mean([r.vs_torch for r in rows]), "worst_vs_torch": min(r.vs_torch for r in rows),
            "square_vs_torch": mean(squares), "square_worst": min(squares), "aspect4_vs_torch": mean(wide),
            "aspect4_worst": min(wide), "auto_worst": min(fastest),
            "gemm_fraction": statistics.median(r.gemm for r in rows), "gemm_worst": min(r.gemm for r in rows)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=pathlib.Path, help="write rows and summary to this file")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each shape")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    args = parser.parse_args()
    runner = Runner()
    rows = []
    print(f"{'model':13} {'shape':>11} {'threads':>7} {'':>5} {'form':>9} {'cpu ms':>8} {'torch ms':>9} {'sgemm ms':>9} "
          f"{'vs torch':>20} {'gemm':>6}")
    for threads in args.threads:
        torch.set_num_threads(threads)
        for precision in ("fp32", "bf16"):
            gemm = gemm_rate(runner, threads, precision)
            print(f"{'product':13} {'1024x1024':>11} {threads:7} {precision:>5} {gemm:.0f} GFLOP/s", flush=True)
            for model, shapes in SHAPES.items():
                for shape in shapes:
                    r = measure(runner, model, shape, threads, precision, args.rounds, gemm)
                    rows.append(r)
                    print(f"{model:13} {f'{r.rows}x{r.cols}':>11} {threads:7} {precision:>5} {r.form:>9} {r.cpu_ms:8.2f} "
                          f"{r.torch_ms:9.2f} {r.blas_ms:9.2f} {r.vs_torch:6.2f} ({r.vs_torch_low:.2f} to "
                          f"{r.vs_torch_high:.2f}) {r.gemm:6.2f}", flush=True)
    runner.close()
    summary = summarize(rows)
    for name, value in summary.items():
        print(f"{name:20} {value:.3f}")
    if args.json:
        args.json.write_text(json.dumps({"rows": [dataclasses.asdict(r) for r in rows], "summary": summary}, indent=1))


if __name__ == "__main__":
    main()
