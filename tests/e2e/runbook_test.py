# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""Entries of the runbook (deploy/README.md), by its own commands: a worker is lost, and the disk of the checkpoints is full."""

import os
import pathlib
import re
import subprocess
import time
from collections.abc import Callable

import chaos
import dmuon_client as dmuon
import history
import pytest
import torch
import trainers
from dmuon_client import DmuonError, _abi
from dmuon_fixtures import Cluster, Daemon
from trainers import HYPERS, bits, whole_params

PATIENCE_SECONDS = 60.0
NO_ROOM = re.compile(r"a part of \d+ bytes does not fit .*, which has room for \d+")


def await_that(reached: Callable[[], bool], what: Callable[[], object]) -> None:
    """`what` is shown when it is not in time."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not reached():
        assert time.monotonic() < deadline, what()
        time.sleep(0.05)


def test_lost_workers_are_started_again_and_go_on(tmp_path, job):
    steps = 60
    cluster = Cluster(1, "--step-timeout", "1", "--attach-timeout", "0.5")
    stage = None

    def jobs() -> str:
        return cluster.nodes[0].ctl("jobs").stdout

    try:
        cluster.start()
        stage = chaos.Stage(cluster, None, job, tmp_path, _abi.DMUON_REPLICATION_NONE, steps, places=(0, 0))
        stage.await_step(3)
        stage.run.kill(1)
        await_that(lambda: "waiting for the return of rank 1" in jobs(), jobs)
        stage.run.start(1)
        stage.await_step(stage.last_step() + 3)
        for rank in (0, 1):
            stage.run.kill(rank)
        await_that(lambda: "no worker attached, state of step" in jobs(), jobs)
        for rank in (0, 1):
            stage.run.start(rank)
        assert history.findings(stage.finish(), steps) == []
        chaos.await_no_jobs(cluster)
        cluster.stop()
    finally:
        if stage:
            stage.close()
        cluster.close()


@pytest.fixture
def small_disk(tmp_path):
    """A daemon that keeps its checkpoints on a file system of one MiB, which it alone has mounted; and where that is seen from
    here."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = ["unshare", "-Urm", "sh", "-c", 'mount -t tmpfs -o size=1m dmuon-test "$0" && exec "$@"', str(folder)]
    tried = subprocess.run([*mounted, "true"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        pytest.skip(f"a tmpfs in a user namespace is not permitted here: {tried.stderr.strip()}")
    daemon = Daemon("--checkpoint-dir", str(folder), within=mounted)
    try:
        daemon.start()
        yield daemon, pathlib.Path(f"/proc/{daemon.pid}/root{folder}")
        assert daemon.stop() == 0
    finally:
        daemon.close()


def fill(disk: pathlib.Path, room: int) -> None:
    """Leaves less than `room` bytes."""
    free = os.statvfs(disk)
    (disk / "somebody's").write_bytes(b"x" * (free.f_bavail * free.f_frsize - room // 2))


def errors(daemon: Daemon, job: str) -> int:
    """Checkpoints that were not made, as Prometheus sees them."""
    lines = [line for line in daemon.metrics().splitlines() if line.startswith("dmuon_checkpoint_duration_seconds_count")
             and f'job_id="{job}"' in line and 'op="save"' in line and 'result="error"' in line]
    return sum(int(float(line.split()[-1])) for line in lines)


def test_a_full_disk_costs_checkpoints_only_until_there_is_room(small_disk, job):
    daemon, disk = small_disk
    model = trainers.make_small(False, torch.float32)

    def saved() -> dict:
        return daemon.status()["node"]["jobs"][0].get("checkpoint", {})

    with dmuon.Muon(model, job=job, address=daemon.address, verbose=False, checkpoint_every_steps=2, checkpoint_keep=1,
                    **HYPERS) as opt:
        trainers.run_to(model, opt, 1)
        opt.save("old", wait=True)
        trainers.run_to(model, opt, 2)
        await_that(lambda: saved().get("step") == "2" and not saved().get("progress"), saved)
        two = bits(whole_params(model))
        fill(disk, next((disk / job).glob("old.*.safetensors")).stat().st_size)

        trainers.run_to(model, opt, 4)  # of which the schedule wants a checkpoint
        await_that(lambda: errors(daemon, job) == 1, saved)
        assert NO_ROOM.search(daemon.ctl("jobs").stdout), saved()
        assert re.search(f"no checkpoint 'step-000000000004' of step 4: {NO_ROOM.pattern}", daemon.log())
        with pytest.raises(DmuonError, match=f"DMUON_CHECKPOINT: .*{NO_ROOM.pattern}"):
            opt.save("mine", wait=True)
        assert errors(daemon, job) == 2
        trainers.run_to(model, opt, 5)
        listed = daemon.ctl("checkpoint", "list", job).stdout
        assert "old" in listed and "step-000000000002" in listed and "mine" not in listed and "step-000000000004" not in listed
        daemon.ctl("checkpoint", "verify", job, "step-000000000002")
        opt.load("step-000000000002")
        assert bits(whole_params(model)) == two

        daemon.ctl("checkpoint", "delete", job, "old")
        trainers.run_to(model, opt, 4)
        await_that(lambda: saved().get("step") == "4" and not saved().get("progress"), saved)
        daemon.ctl("checkpoint", "verify", job, "step-000000000004")
        assert errors(daemon, job) == 2
