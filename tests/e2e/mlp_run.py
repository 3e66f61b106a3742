# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""The C++ example trainer as a run."""

import json
import pathlib

from dmuon_fixtures import program
from worker_run import WorkerRun


class MlpRun(WorkerRun):
    """train_mlp, rank i attached to addresses[i]."""

    def __init__(self, addresses: list[str], job: str, folder: pathlib.Path, steps: int = 1500,
                 step_ms: int = 0) -> None:
        self._reports = [folder / f"{job}.{rank}" for rank in range(len(addresses))]
        super().__init__([
            [str(program("train_mlp")), "--rank", str(rank), "--world-size", str(len(addresses)), "--address", address,
             "--job", job, "--steps", str(steps), "--step-ms", str(step_ms), "--seed", "5",
             "--report", str(self._reports[rank])] for rank, address in enumerate(addresses)])

    def finish(self, timeout: float = 120.0) -> list[dict]:
        """What each rank reported."""
        self.join(timeout)
        return [json.loads(report.read_text()) for report in self._reports]
