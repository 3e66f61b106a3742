# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""A job of chaos workers over the nodes of a cluster, its history, and waiting for what is to come."""

import json
import pathlib
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import history
from dmuon_client import _abi
from dmuon_fixtures import PATIENCE_SECONDS, Cluster
from worker_run import WorkerRun

WORKER = pathlib.Path(__file__).with_name("chaos_worker.py")
PLACES = (0, 0, 1, 1, 2, 2)  # of the workers
ENDS = (None, 0, -signal.SIGKILL)  # of a worker: none, as it should, by the test


class Trial:
    """With copies of each node's state on another one. `places`: the node of each rank; `options`: more of a worker's."""

    def __init__(self, cluster: Cluster, job: str, folder: pathlib.Path, places: Sequence[int], steps: int,
                 **options: Any) -> None:
        self.job, self.path = job, folder / f"{job}-{options.get('load', '')}.jsonl"
        self._cluster, self._steps, self._over = cluster, steps, self.path.with_suffix(".over")
        self._history = history.History(self.path)
        self._options = [{"rank": rank, "world_size": len(places), "node": place, "address": cluster.nodes[place].address,
                          "job": job, "steps": steps, "history": str(self.path), "over": str(self._over),
                          "replication": _abi.DMUON_REPLICATION_SYNC, **options} for rank, place in enumerate(places)]
        self.run = WorkerRun([self._command(rank) for rank in range(len(places))])

    def _command(self, rank: int) -> list[str]:
        return [sys.executable, str(WORKER), json.dumps(self._options[rank])]

    def move(self, rank: int, address: str) -> None:
        """The worker is killed, if it lives, and started again beside another daemon."""
        self._options[rank]["address"] = address
        if self.run.workers[rank].poll() is None:
            self.run.kill(rank)
        self.run.start(rank, self._command(rank))

    def until(self, what: str, reached: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not reached():
            ended = [worker.communicate()[1] for worker in self.run.workers if worker.poll() not in ENDS]
            assert not ended, f"{ended} before {what}\n{self._cluster.log()}"
            assert time.monotonic() < deadline, f"{what}: not within {PATIENCE_SECONDS} s\n{self._cluster.log()}"
            time.sleep(0.005)

    def last_step(self) -> int:
        """The last one that a worker was told of."""
        return max(history.last_steps(self._history.latest()).values(), default=0)

    def _all_done(self) -> bool:
        workers = {worker.pid: self._steps for worker in self.run.workers}
        return workers.items() <= history.last_steps(self._history.latest(1 << 16)).items()

    def finish(self) -> list[history.Fact]:
        """All steps are done, and the workers know that nobody needs them any more."""
        self.until("the last step", self._all_done)
        self._over.touch()
        return self._history.facts()

    def join(self) -> None:
        self.run.join(PATIENCE_SECONDS)

    def close(self) -> None:
        self.run.stop()
        self._history.close()
