# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint costs a trainer, and how fast it is written and read.

One worker, a daemon with a slot a core that keeps its checkpoints on a disk, GPT-2's widths: one layer's matrices and two
thirds of the embedding, so that a step is shorter than the writing of the state. Gradients are random numbers; a step is
the optimizer's alone. Each round, one after the other: steps undisturbed; memcpy; save() and steps until the checkpoint
exists; save() and nothing else until it exists; load() of a file that the page cache does not hold, and of one that it does.

    stall         save()'s duration: the daemon copies its state into new memory. Here such memory as another process has
                  just given back; stall_found: whatever the kernel has, which a virtual machine may get from its host first
    memcpy        the same number of bytes, into memory of the former kind and into memory that was written before, by one
                  thread and by as many as there are slots. memcpy_ratio: stall over the former by as many threads
    first_touch   writing as much memory as the kernel has it, by as many threads
    step_ratio    the step right after save() over the median of its round's undisturbed ones. A step that is longer than
                  the writing counts by the part that is not: its surplus over the part of it that was disturbed
    step_bound    what step_ratio must be at least where steps use all cores: the daemon's processor time of the writing,
                  measured while nothing else is done, comes out of them
    save_mb_s     bytes over the time from the call of save() until the manifest is there, while nothing else is done
    load_mb_s     bytes over load()'s duration, the page cache having none of the file

others_cores: cores that neither the bench nor its daemon used, the host's among them. Above a few hundredths, the figures are not
the machine's.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import cost_bench  # noqa: E402  (finds the folders below)
import dmuon_client as dmuon  # noqa: E402
from dmuon_fixtures import Daemon  # noqa: E402

JOB = "job"
UNDISTURBED = 3  # steps a round
SLOTS = os.cpu_count() or 1
TICKS = os.sysconf("SC_CLK_TCK")
TARGETS = {"step_ratio": 1.05}
UNITS = {"ms": "ms", "mb_s": "MB/s", "ratio": "", "s": "s", "cores": "cores", "share": ""}


def model() -> torch.nn.Module:
    layer = {"qkv": (2304, 768), "out": (768, 768), "up": (3072, 768), "down": (768, 3072)}
    return cost_bench.matrices(1, layer, 50257 * 2 // 3, 768)


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


class Watch:
    """When a file is there; looks every millisecond."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self.seen: float | None = None
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._path.exists():
            time.sleep(0.001)
        self.seen = time.perf_counter()

    def wait(self) -> float:
        self._thread.join(60.0)
        assert self.seen is not None, f"no {self._path}"
        return self.seen


def copy_seconds(threads: int, to: np.ndarray | None, source: np.ndarray, pool: ThreadPoolExecutor) -> float:
    """Of a memcpy in equal parts; into new memory where there is no `to`."""
    edges = [source.size * i // threads for i in range(threads + 1)]

    def whole() -> None:
        target = np.empty_like(source) if to is None else to  # numpy asks for huge pages, as the daemon does
        list(pool.map(lambda i: np.copyto(target[edges[i]:edges[i + 1]], source[edges[i]:edges[i + 1]]), range(threads)))

    return timed(whole)


def touch(size: int, pool: ThreadPoolExecutor) -> float:
    """Seconds of writing so much new memory, which is given back."""
    zero = np.zeros(1 << 20, np.uint8)

    def whole() -> None:
        target = np.empty((size // zero.size + 1, zero.size), np.uint8)
        list(pool.map(lambda i: np.copyto(target[i::SLOTS], zero), range(SLOTS)))

    return timed(whole)


def process_seconds(pid: int) -> float:
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return sum(map(int, fields[11:13])) / TICKS


def busy_seconds() -> float:
    """Of all cores, and of the host where it takes them away."""
    user, nice, system, _, _, irq, softirq, steal = map(int, pathlib.Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / TICKS


class Bench:
    """`found`: what was measured, by name."""

    def __init__(self, daemon: Daemon, folder: pathlib.Path, opt: dmuon.Muon) -> None:
        self.found: dict[str, list[float]] = defaultdict(list)
        self.bytes = 0  # of a checkpoint
        self._daemon, self._opt, self._folder = daemon, opt, folder / JOB
        self._metrics = f"http://{daemon.status()['node']['metrics_address']}/metrics"
        self._pool = ThreadPoolExecutor(SLOTS)

    def _daemons_copies(self) -> float:
        """Seconds of all copies so far, as the daemon has them."""
        with urllib.request.urlopen(self._metrics, timeout=30) as answer:
            found = re.search(rf'^dmuon_checkpoint_copy_seconds_sum{{job_id="{JOB}"}} (\S+)$', answer.read().decode(), re.MULTILINE)
        return float(found[1]) if found else 0.0

    def _save(self, name: str, kind: str, then: Callable[[Watch], None]) -> tuple[float, float]:
        """Seconds until save() returned and until the checkpoint existed; `then` runs between the two."""
        before = self._daemons_copies()
        watch = Watch(self._folder / f"{name}.json")
        started = time.perf_counter()
        self._opt.save(name)
        stall = time.perf_counter() - started
        then(watch)
        exists = watch.wait() - started
        self._opt.wait_saved()
        self.found[kind].append(1e3 * stall)
        self.found[kind.replace("stall", "daemons_copy")].append(1e3 * (self._daemons_copies() - before))
        return stall, exists

    def _save_and_step(self, name: str, undisturbed: float) -> None:
        spans = []

        def step(watch: Watch) -> None:
            while not spans or watch.seen is None:
                started = time.perf_counter()
                self._opt.step()
                spans.append((started, time.perf_counter()))

        stall, exists = self._save(name, "stall_found_ms", step)
        written = spans[0][0] + exists - stall
        started, ended = spans[0]
        share = min(1.0, (written - started) / (ended - started))
        disturbed = share * (ended - started)
        self.found["step_saving_ms"].append(1e3 * (ended - started))
        self.found["saving_share"].append(share)
        self.found["step_ratio"].append(disturbed / (disturbed - (ended - started - undisturbed)))
        self.found["save_stepping_mb_s"].append(self.bytes / 1e6 / exists)
        self.found["writing_stepping_s"].append(exists - stall)

    def _save_alone(self, name: str) -> None:
        used = []

        def wait(watch: Watch) -> None:
            used.append(process_seconds(self._daemon.pid))
            watch.wait()
            used.append(process_seconds(self._daemon.pid))

        touch(self.bytes, self._pool)
        stall, exists = self._save(name, "stall_ms", wait)
        part, = self._folder.glob(f"{name}.*.safetensors")
        self.bytes = part.stat().st_size
        self.found["save_mb_s"].append(self.bytes / 1e6 / exists)
        self.found["writing_s"].append(exists - stall)
        self.found["writing_processor_s"].append(used[1] - used[0])

    def _load(self, name: str) -> None:
        part, = self._folder.glob(f"{name}.*.safetensors")
        with part.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        for which in ("load_mb_s", "load_cached_mb_s"):
            self.found[which].append(self.bytes / 1e6 / timed(lambda: self._opt.load(name)))

    def _memcpy(self) -> None:
        self.found["first_touch_ms"].append(1e3 * touch(self.bytes, self._pool))
        for threads in sorted({1, SLOTS}):
            for kind, to in (("new", None), ("warm", self._warm)):
                touch(self.bytes, self._pool)
                self.found[f"memcpy_{kind}_{threads}_ms"].append(1e3 * copy_seconds(threads, to, self._source, self._pool))

    def warm_up(self) -> None:
        self._opt.step()
        self._save_alone("warm")
        self._source, self._warm = (np.ones(self.bytes, np.uint8) for _ in range(2))
        self.found.clear()

    def round(self, turn: int) -> None:
        steps = [timed(self._opt.step) for _ in range(UNDISTURBED)]
        self.found["step_ms"] += [1e3 * s for s in steps]
        self._save_and_step(f"stepping-{turn}", statistics.median(steps))
        self._memcpy()
        self._save_alone(f"alone-{turn}")
        self._load(f"alone-{turn}")


def quartiles(values: list[float]) -> tuple[float, float, float]:
    return tuple(statistics.quantiles(values, n=4, method="inclusive"))


def run(folder: pathlib.Path, rounds: int) -> tuple[dict[str, list[float]], int]:
    flags = ("--slots", str(SLOTS), "--threads-per-slot", "1", "--memory-limit", "4", "--checkpoint-dir", str(folder))
    with contextlib.closing(Daemon(*flags).start()) as daemon:
        trained = model()
        with dmuon.Muon(trained, job=JOB, address=daemon.address, verbose=False, autotune="off") as opt:
            for p in trained.parameters():
                p.grad = torch.randn_like(p)
            bench = Bench(daemon, folder, opt)
            bench.warm_up()
            ours = lambda: process_seconds(os.getpid()) + process_seconds(daemon.pid)  # noqa: E731
            started, busy, own = time.perf_counter(), busy_seconds(), ours()
            for i in range(rounds):
                bench.round(i)
            seconds = time.perf_counter() - started
            bench.found["others_cores"].append((busy_seconds() - busy - (ours() - own)) / seconds)
    return bench.found, bench.bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=pathlib.Path, help="write rows and summary to this file")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("/var/tmp"), help="where checkpoints lie, on a disk")
    args = parser.parse_args()

    with tempfile.TemporaryDirectory(prefix="dmuon-", dir=args.folder) as folder:
        found, size = run(pathlib.Path(folder), args.rounds)
    new = statistics.median(found[f"memcpy_new_{SLOTS}_ms"])
    found["memcpy_ratio"] = [s / new for s in found["stall_ms"]]
    print(f"{size / 1e6:.0f} MB, {SLOTS} slots, {args.rounds} rounds, in {args.folder}\n{'':22} {'median':>9} {'quartiles':>20}   target")
    for name, values in found.items():
        low, middle, high = quartiles(values) if len(values) > 1 else values * 3
        unit = UNITS[next(end for end in sorted(UNITS, key=len, reverse=True) if name.endswith(f"_{end}"))]
        digits = 1 if unit in ("ms", "MB/s") else 3
        print(f"{name:22} {middle:9.{digits}f} {f'({low:.{digits}f} to {high:.{digits}f})':>20} {unit:5} {TARGETS.get(name, '')}")
    middle = {name: statistics.median(values) for name, values in found.items()}
    cores = SLOTS * middle["writing_stepping_s"]  # seconds of all cores
    middle["step_bound"] = cores / (cores - middle["writing_processor_s"])
    print(f"{'step_bound':22} {middle['step_bound']:9.3f}")
    summary = {"stall_ms_p50": middle["stall_ms"], "bytes": size} | {
        name: middle[name] for name in ("save_mb_s", "load_mb_s", "memcpy_ratio", "step_ratio", "step_bound", "stall_found_ms",
                                        "others_cores")}
    if args.json:
        args.json.write_text(json.dumps({"rows": [{"what": name, "values": values} for name, values in found.items()],
                                         "summary": summary}, indent=1))


if __name__ == "__main__":
    main()
