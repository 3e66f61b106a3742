# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""The C++ example trainer as a run of one process a rank, whose workers may be killed and started again."""

import json
import pathlib
import subprocess

from dmuon_fixtures import program


class MlpRun:
    """train_mlp, rank i attached to addresses[i]."""

    def __init__(self, addresses: list[str], job: str, folder: pathlib.Path, steps: int = 1500,
                 step_ms: int = 0) -> None:
        self._addresses, self._job, self._folder = addresses, job, folder
        self._flags = ["--steps", str(steps), "--step-ms", str(step_ms), "--seed", "5"]
        self.workers = [self._launch(rank) for rank in range(len(addresses))]

    def _launch(self, rank: int) -> subprocess.Popen:
        command = [str(program("train_mlp")), "--rank", str(rank), "--world-size", str(len(self._addresses)),
                   "--address", self._addresses[rank], "--job", self._job, *self._flags,
                   "--report", str(self._report(rank))]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def _report(self, rank: int) -> pathlib.Path:
        return self._folder / f"{self._job}.{rank}"

    def kill_and_restart(self, rank: int) -> bool:
        """False when the worker had ended by itself."""
        if self.workers[rank].poll() is not None:
            return False
        self.workers[rank].kill()
        self.workers[rank].communicate()
        self.workers[rank] = self._launch(rank)
        return True

    @property
    def running(self) -> bool:
        return all(worker.poll() is None for worker in self.workers)

    def finish(self, timeout: float = 120.0) -> list[dict]:
        """What each rank reported."""
        for worker in self.workers:
            _, errors = worker.communicate(timeout=timeout)
            assert worker.returncode == 0, errors
        return [json.loads(self._report(rank).read_text()) for rank in range(len(self.workers))]

    def stop(self) -> None:
        for worker in self.workers:
            if worker.poll() is None:
                worker.kill()
                worker.communicate()
