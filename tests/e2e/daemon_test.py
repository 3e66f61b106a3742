# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""dmuond and dmuon-coordinator as programs: one owner a socket, lost and frozen workers, a coordinator of its own."""

import json
import os
import pathlib
import signal
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest
from dmuon_fixtures import Daemon, _run, program

PATIENCE_SECONDS = 60.0  # only a hang reaches it


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited {PATIENCE_SECONDS} s for {what}"
        time.sleep(0.02)


class Workers:
    """train_mlp processes of one job; every one is ended by pid at the end."""

    def __init__(self, address: str, job: str, steps: int, *flags: str) -> None:
        self.processes = [
            subprocess.Popen(
                [str(program("train_mlp")), "--rank", str(rank), "--world-size", "2", "--address", address,
                 "--job", job, "--steps", str(steps), "--seed", "3", *flags],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            for rank in range(2)
        ]

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.communicate()

    def finish(self) -> list[str]:
        """The checksums that the workers print."""
        sums = []
        for process in self.processes:
            output, _ = process.communicate(timeout=PATIENCE_SECONDS)
            assert process.returncode == 0, output
            sums.append(output.rsplit("checksum ", 1)[1].strip())
        return sums


def cuda_libraries(pid: int) -> list[str]:
    names = ("libcublas", "libcudart", "libcuda.so", "libdmuon_cuda")
    return [line for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines() if any(n in line for n in names)]


def test_a_daemon_on_the_cpu_maps_nothing_of_cuda() -> None:
    daemon = Daemon().start()
    try:
        assert cuda_libraries(daemon.pid) == []
    finally:
        daemon.kill()


def test_a_missing_cuda_plugin_ends_the_daemon_with_the_place_named(tmp_path: pathlib.Path) -> None:
    plugin = tmp_path / "libdmuon_cuda.so"
    command = [str(program("dmuond")), "--standalone", "--listen", f"unix:{tmp_path}/d.sock", "--metrics", "",
               "--backend", "cuda"]
    ended = subprocess.run(command, env={**os.environ, "DMUON_CUDA_PLUGIN": str(plugin)}, capture_output=True, text=True,
                           timeout=PATIENCE_SECONDS, check=False)
    assert ended.returncode == 1
    assert f'kernels backend "cuda": no plug-in at {plugin}' in ended.stderr


def job_of(daemon: Daemon, job: str) -> dict:
    return next((j for j in daemon.status()["node"]["jobs"] if j["job_id"] == job), {})


def last_step(daemon: Daemon, job: str) -> int:
    return int(job_of(daemon, job).get("last_step", 0))


@pytest.fixture
def impatient_daemon() -> Iterator[Daemon]:
    yield from _run("--step-timeout", "1", "--attach-timeout", "0.5")


def test_a_second_daemon_on_the_same_socket_is_refused_and_the_first_goes_on(daemon, job):
    second = subprocess.run([str(program("dmuond")), "--standalone", "--listen", daemon.address],
                            capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert second.returncode == 1
    assert f"in use by process {daemon.pid}" in second.stderr
    with Workers(daemon.address, job, 5) as workers:
        first, other = workers.finish()
        assert first == other


@pytest.mark.parametrize(("flags", "complaint"), [
    ((), "say where the coordinator is"),
    (("--standalone", "--listen", "127.0.0.1:0"), "must be unix:/path"),
    (("--standalone", "--step-timeout", "5"), "--attach-timeout is 10s"),
    (("--standalone", "--backend", "gpu"), "gpu"),
    (("--standalone", "--log-level", "loud"), "loud"),
])
def test_a_configuration_that_cannot_work_is_refused_by_name(flags, complaint, tmp_path):
    listen = () if "--listen" in flags else ("--listen", f"unix:{tmp_path}/d.sock")
    refused = subprocess.run([str(program("dmuond")), *flags, *listen], capture_output=True, text=True,
                             timeout=PATIENCE_SECONDS)
    assert refused.returncode == 1
    assert complaint in refused.stderr


def test_a_killed_worker_is_noticed_and_the_job_waits_for_its_return(daemon, job):
    with Workers(daemon.address, job, 100_000) as workers:
        until(lambda: last_step(daemon, job) > 0, "the first step")
        workers.processes[1].kill()
        until(lambda: job_of(daemon, job)["attached_ranks"] == [0], "the end of rank 1")
        assert "waiting for the return of rank 1" in job_of(daemon, job)["state"]
        assert 'dmuon_worker_deaths_total{job_id="' + job + '"} 1' in daemon.metrics()


def test_a_frozen_worker_is_named_and_the_run_goes_on_when_it_thaws(impatient_daemon, job):
    with Workers(impatient_daemon.address, job, 400, "--step-ms", "2") as workers:
        until(lambda: last_step(impatient_daemon, job) > 0, "the first step")
        workers.processes[1].send_signal(signal.SIGSTOP)
        # Longer than the step timeout: rank 0 is answered, and asks again.
        until(lambda: "WORKER_MISSING" in impatient_daemon.metrics(), "an answer that names the missing worker")
        assert "waiting for rank 1" in job_of(impatient_daemon, job)["state"]
        workers.processes[1].send_signal(signal.SIGCONT)
        first, other = workers.finish()
        assert first == other


def test_a_stopped_daemon_leaves_no_file_but_its_lock(daemon):
    folder = daemon.directory
    assert daemon.stop() == 0
    assert sorted(p.name for p in folder.glob("d.sock*")) == ["d.sock.lock"]


class Coordinator:
    """A dmuon-coordinator whose address outlives restarts."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.address = f"unix:{folder}/coordinator.sock"
        self._command = [str(program("dmuon-coordinator")), "--listen", self.address, "--state-dir",
                         str(folder / "coordinator")]
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(lambda: self.jobs(check=False).returncode == 0, "the coordinator")

    def jobs(self, check: bool = True) -> subprocess.CompletedProcess:
        return subprocess.run([str(program("dmuonctl")), "--address", self.address, "--json", "jobs"], check=check,
                              capture_output=True, text=True, timeout=PATIENCE_SECONDS)

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(PATIENCE_SECONDS)

    def generation_of(self, job: str) -> int:
        jobs = json.loads(self.jobs().stdout)["cluster"]
        return next((int(j["generation"]) for j in jobs if j["job_id"] == job), 0)


@pytest.fixture
def coordinator(tmp_path) -> Iterator[Coordinator]:
    made = Coordinator(tmp_path)
    yield made
    if made.process.poll() is None:
        assert made.stop() == 0


def test_steps_go_on_while_the_coordinator_restarts_and_it_learns_the_plan_again(coordinator, job, tmp_path):
    socket = f"unix:{tmp_path}/node.sock"
    node = subprocess.Popen([str(program("dmuond")), "--coordinator", coordinator.address, "--listen", socket],
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with Workers(socket, job, 1500, "--step-ms", "5") as workers:
            until(lambda: coordinator.generation_of(job) > 0, "the plan")
            generation = coordinator.generation_of(job)
            assert coordinator.stop() == 0
            coordinator.start()
            until(lambda: coordinator.generation_of(job) == generation, "the node to join again")
            first, other = workers.finish()
            assert first == other
        node.terminate()
        assert node.wait(PATIENCE_SECONDS) == 0
    finally:
        if node.poll() is None:
            node.kill()
            node.wait()
