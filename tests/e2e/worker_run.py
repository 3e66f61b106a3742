# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""A run of one process a rank, whose workers may be killed and started again."""

import subprocess


class WorkerRun:
    """commands[rank] starts a worker, also in its next life."""

    def __init__(self, commands: list[list[str]]) -> None:
        self._commands = commands
        self.workers = [self._launch(rank) for rank in range(len(commands))]

    def _launch(self, rank: int) -> subprocess.Popen:
        return subprocess.Popen(self._commands[rank], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def kill_and_restart(self, rank: int) -> bool:
        """False when the worker had ended by itself."""
        if self.workers[rank].poll() is not None:
            return False
        self.kill(rank)
        self.start(rank)
        return True

    def kill(self, rank: int) -> None:
        self.workers[rank].kill()
        self.workers[rank].communicate()

    def start(self, rank: int, command: list[str] | None = None) -> None:
        """In its next life; with another command from now on, if there is one."""
        if command is not None:
            self._commands[rank] = command
        self.workers[rank] = self._launch(rank)

    @property
    def running(self) -> bool:
        return all(worker.poll() is None for worker in self.workers)

    def join(self, timeout: float = 120.0) -> None:
        """Until every worker has ended; each must with 0."""
        for worker in self.workers:
            _, errors = worker.communicate(timeout=timeout)
            assert worker.returncode == 0, errors

    def stop(self) -> None:
        for worker in self.workers:
            if worker.poll() is None:
                worker.kill()
                worker.communicate()
