# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""Training workers for tests: processes with one Gloo group, kept over many checks because importing
torch costs seconds. A check is a function of a module: function(rank, world_size, *args)."""

import multiprocessing
import os
import pathlib
import tempfile
import traceback
from collections.abc import Callable
from typing import Any


class WorkerFailed(AssertionError):
    """A check raised in a worker, or the worker died; carries rank and traceback."""


def _serve(rank: int, world_size: int, store: str, connection) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
    while True:
        task = connection.recv()
        if task is None:
            break
        function, args, kwargs = task
        try:
            answer = (True, function(rank, world_size, *args, **kwargs))
        except BaseException:
            answer = (False, traceback.format_exc())
        connection.send(answer)
    dist.destroy_process_group()


class WorkerPool:
    """`world_size` workers. Usable as a context; a pool whose check failed starts afresh."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self._workers: list[tuple[Any, Any]] = []
        self._folder: tempfile.TemporaryDirectory | None = None

    def run(self, function: Callable, *args: Any, timeout: float = 120.0, **kwargs: Any) -> list[Any]:
        """function(rank, world_size, *args, **kwargs) on all workers; results in rank order."""
        if not self._workers:
            self._start()
        for _, connection in self._workers:
            connection.send((function, args, kwargs))
        results, failures = [], []
        for rank, (process, connection) in enumerate(self._workers):
            try:
                if failures and not connection.poll(5.0):
                    failures.append(f"rank {rank}: did not come back")
                    continue
                if not connection.poll(timeout):
                    failures.append(f"rank {rank}: no answer within {timeout} s")
                    continue
                succeeded, value = connection.recv()
            except EOFError:
                process.join(5.0)
                succeeded, value = False, f"died with exit code {process.exitcode}"
            results.append(value) if succeeded else failures.append(f"rank {rank}: {value}")
        if failures:
            self.stop()
            raise WorkerFailed("\n".join(failures))
        return results

    def _start(self) -> None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        # Workers are forks of a process that has imported torch, and done nothing else.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch.distributed.fsdp", "torch.distributed.tensor"])
        self._folder = tempfile.TemporaryDirectory(prefix="dmuon-pool-")
        store = str(pathlib.Path(self._folder.name) / "store")
        for rank in range(self.world_size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, self.world_size, store, theirs))
            process.start()
            theirs.close()
            self._workers.append((process, ours))

    def stop(self) -> None:
        for process, connection in self._workers:
            try:
                connection.send(None)
            except OSError:
                pass  # it is dead already
        for process, connection in self._workers:
            process.join(5.0)
            if process.is_alive():
                process.kill()
                process.join()
            connection.close()
        self._workers = []
        if self._folder:
            self._folder.cleanup()
            self._folder = None

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()
