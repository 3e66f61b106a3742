# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""A dmuond of one's own: started in a temporary directory, asked through dmuonctl, ended by pid.

The programs come from build/release, or from the build directory in DMUON_BUILD_DIR.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
START_SECONDS = 30.0  # a sanitizer build on a busy machine needs a few
STOP_SECONDS = 30.0
PATIENCE_SECONDS = 60.0  # from one event of a test to the next


def build_dir() -> pathlib.Path:
    return pathlib.Path(os.environ.get("DMUON_BUILD_DIR", ROOT / "build" / "release"))


def program(name: str) -> pathlib.Path:
    """Path of a built program; an error that says how to get it when it is missing."""
    path = build_dir() / "bin" / name
    if not path.exists():
        raise FileNotFoundError(f"{path} is not built; run: cmake --preset release && cmake --build --preset release")
    return path


def await_file(path: pathlib.Path) -> None:
    """One side of a test says so by it."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not path.exists():
        assert time.monotonic() < deadline, f"no {path} within {PATIENCE_SECONDS} s"
        time.sleep(0.01)


def with_failpoints(failpoints: str) -> dict[str, str]:
    return os.environ | {"DMUON_FAILPOINTS": failpoints}


class Daemon:
    """One `dmuond`, standalone or a node of a coordinator. Its directory, and so its address, outlives
    restarts. `within`: a command that becomes the program behind it."""

    def __init__(self, *flags: str, coordinator: str | None = None, within: Sequence[str] = ()) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="dmuon-")
        self.directory = pathlib.Path(self._folder.name)
        self.address = f"unix:{self.directory}/d.sock"
        self.log_path = self.directory / "log"
        if coordinator is None:
            state = self.directory / "state"
            state.mkdir()
            self._side = ["--standalone", "--state-dir", str(state)]
        else:
            self._side = ["--coordinator", coordinator]
        self._flags = flags
        self._within = within
        self._process: subprocess.Popen | None = None

    def launch(self, failpoints: str = "") -> None:
        """Starts it; `failpoints`: where it is to fail (daemon/base/failpoint.h)."""
        assert self._process is None, "already started"
        command = [*self._within, program("dmuond"), *self._side, "--listen", self.address, "--metrics", "127.0.0.1:0",
                   "--cache-dir", self.directory / "cache", *self._flags]
        with open(self.log_path, "ab") as log:
            self._process = subprocess.Popen([str(part) for part in command], stdout=log, stderr=log,
                                             stdin=subprocess.DEVNULL, env=with_failpoints(failpoints))

    def start(self, failpoints: str = "") -> "Daemon":
        """Starts it and waits until it answers."""
        self.launch(failpoints)
        deadline = time.monotonic() + START_SECONDS
        while self.ctl("status", check=False).returncode != 0:
            if self._process.poll() is not None:
                raise AssertionError(f"dmuond ended with {self._process.returncode}:\n{self.log()}")
            if time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"dmuond does not answer after {START_SECONDS} s:\n{self.log()}")
            time.sleep(0.05)
        return self

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    def ctl(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess:
        """Runs dmuonctl against this daemon."""
        command = [str(program("dmuonctl")), "--address", self.address, *arguments]
        return subprocess.run(command, check=check, capture_output=True, text=True, timeout=60)

    def status(self) -> dict:
        """{"node": GetNodeStatusResponse, "cluster": GetClusterStatusResponse}, with the proto's field names."""
        return json.loads(self.ctl("--json", "status").stdout)

    def metrics(self) -> str:
        """What /metrics says."""
        url = f"http://{self.status()['node']['metrics_address']}/metrics"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url, timeout=30) as answer:
            return answer.read().decode()

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def stop(self) -> int:
        """SIGTERM; the exit code. A daemon that does not end in time is killed, and that is an error."""
        assert self._process is not None, "not started"
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"dmuond ignores SIGTERM for {STOP_SECONDS} s:\n{self.log()}") from None
        self._process = None
        return code

    def kill(self) -> None:
        """kill -9, when it still runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """Whatever happened, nothing stays behind."""
        self.kill()
        self._folder.cleanup()

    @property
    def running(self) -> bool:
        return self._process is not None

    def has_ended(self) -> bool:
        """By itself."""
        return self._process is not None and self._process.poll() is not None

    def signal(self, number: int) -> None:
        self._process.send_signal(number)


class Network:
    """A network namespace a node, joined by a bridge in one of its own (deploy/namespaces.sh)."""

    def __init__(self, nodes: int) -> None:
        if shutil.which("nft") is None:
            pytest.skip("nft, which cuts links, is not installed")
        script = ('. deploy/namespaces.sh && namespaces_up "$0" || exit 3; trap namespaces_down EXIT; '
                  'echo "$namespace_prefix"; read -r _')
        self._shell = subprocess.Popen(["bash", "-c", script, str(nodes)], cwd=ROOT, text=True,
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._prefix = self._shell.stdout.readline().strip()
        if not self._prefix:
            self._shell.wait()
            pytest.skip("network namespaces are not permitted here")

    def namespace(self, node: int) -> str:
        return f"{self._prefix}-{node}"

    def address(self, node: int) -> str:
        return f"10.77.0.{node + 1}"

    def plug(self, node: int, in_: bool) -> None:
        """Takes the node's cable out of the switch, or puts it in again."""
        subprocess.run(["ip", "-n", f"{self._prefix}-switch", "link", "set", f"port{node}",
                        "up" if in_ else "down"], check=True)

    def cut(self, source: int, target: int, off: bool) -> None:
        """Drops what comes from one node to another, or no longer does; the way back stays open."""
        table = f"from{source}"
        rules = (f"add table ip {table}\nadd chain ip {table} input {{ type filter hook input priority 0 ; }}\n"
                 f"add rule ip {table} input ip saddr {self.address(source)} drop\n" if off
                 else f"delete table ip {table}\n")
        subprocess.run(["ip", "netns", "exec", self.namespace(target), "nft", "-f", "-"], input=rules, text=True,
                       check=True)

    def close(self) -> None:
        self._shell.communicate("\n", timeout=60)


class Cluster:
    """One `dmuon-coordinator` and some nodes: on loopback, or on a network of their own. `node_flags`: more flags of each
    node, by number."""

    def __init__(self, nodes: int, *flags: str, network: Network | None = None,
                 node_flags: Sequence[Sequence[str]] | None = None, coordinator_flags: Sequence[str] = ()) -> None:
        self._coordinator_flags = coordinator_flags
        self._folder = tempfile.TemporaryDirectory(prefix="dmuon-")
        self.coordinator = f"unix:{self._folder.name}/c.sock"
        self._log_path = pathlib.Path(self._folder.name) / "log"
        self._process: subprocess.Popen | None = None
        self.nodes = []
        for i in range(nodes):
            own = ["--data-address", network.address(i)] if network else []
            own += node_flags[i] if node_flags else []
            self.nodes.append(Daemon("--node-id", f"node-{i}", *own, *flags, coordinator=self.coordinator,
                                     within=["ip", "netns", "exec", network.namespace(i)] if network else ()))

    def start(self, coordinator_failpoints: str = "", node_failpoints: Mapping[int, str] | None = None) -> "Cluster":
        """Starts it and waits until every node has joined. `node_failpoints`: by number."""
        self.start_coordinator(coordinator_failpoints)
        for i, node in enumerate(self.nodes):
            node.start((node_failpoints or {}).get(i, ""))
        deadline = time.monotonic() + START_SECONDS
        while self.joined() < len(self.nodes):
            assert time.monotonic() < deadline, f"the nodes do not join:\n{self.log()}"
            time.sleep(0.05)
        return self

    def start_coordinator(self, failpoints: str = "") -> None:
        command = [str(program("dmuon-coordinator")), "--listen", self.coordinator, *self._coordinator_flags]
        with open(self._log_path, "ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                             env=with_failpoints(failpoints))

    def coordinator_has_ended(self) -> bool:
        """By itself."""
        return self._process.poll() is not None

    def signal_coordinator(self, number: int) -> None:
        self._process.send_signal(number)

    def kill_coordinator(self) -> None:
        """kill -9."""
        self._process.kill()
        self._process.wait()

    @property
    def coordinator_pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    def status(self) -> dict:
        """As Daemon.status, asked of the coordinator; empty when it does not answer."""
        command = [str(program("dmuonctl")), "--address", self.coordinator, "--json", "status"]
        answer = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
        return json.loads(answer.stdout) if answer.returncode == 0 else {}

    def joined(self) -> int:
        """How many nodes are members."""
        return len(self.status().get("cluster", {}).get("nodes", []))

    def drain(self, node_id: str, undo: bool = False, seconds: int = 50) -> subprocess.CompletedProcess:
        """`dmuonctl drain`, or undrain: until all jobs have gone over, or cannot, or `seconds` have gone by."""
        command = [*self._drain_command(node_id, undo), "--timeout", str(seconds)]
        return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)

    def start_drain(self, node_id: str, undo: bool = False) -> subprocess.Popen:
        """As drain; nobody waits for it."""
        return subprocess.Popen(self._drain_command(node_id, undo), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL)

    def _drain_command(self, node_id: str, undo: bool) -> list[str]:
        return [str(program("dmuonctl")), "--address", self.coordinator, "undrain" if undo else "drain", node_id]

    def member(self, node_id: str) -> dict:
        """What the coordinator says of a node; empty when that is nothing."""
        nodes = self.status().get("cluster", {}).get("nodes", [])
        return next((node for node in nodes if node["node"]["node_id"] == node_id), {})

    def addresses(self, workers: int) -> list[str]:
        """Of each rank's node: the first ranks on the first node, and so on, as torchrun places them."""
        return [self.nodes[rank * len(self.nodes) // workers].address for rank in range(workers)]

    def coordinator_log(self) -> str:
        return self._log_path.read_text(errors="replace")

    def log(self) -> str:
        """What all of them said."""
        nodes = "".join(f"--- node {i}\n{node.log()}" for i, node in enumerate(self.nodes))
        return f"--- coordinator\n{self.coordinator_log()}{nodes}"

    def stop(self) -> None:
        """SIGTERM to all that run, nodes first; each must end with 0."""
        for node in self.nodes:
            assert not node.running or node.stop() == 0, self.log()
        assert self._process is not None
        self._process.terminate()
        assert self._process.wait(STOP_SECONDS) == 0, self.log()
        self._process = None

    def close(self) -> None:
        for node in self.nodes:
            node.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()


def _run(*flags: str) -> Iterator[Daemon]:
    made = Daemon(*flags)
    try:
        yield made.start()
        if made.running:
            code = made.stop()
            assert code == 0, f"dmuond ended with {code} on SIGTERM:\n{made.log()}"
    finally:
        made.close()


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    """A fresh daemon for one test; must end with 0 on SIGTERM, unless the test ended it itself."""
    yield from _run()


@pytest.fixture(scope="module")
def module_daemon() -> Iterator[Daemon]:
    """One daemon for all tests of a module."""
    yield from _run()


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[Cluster]:
    """A coordinator and two nodes for all tests of a module."""
    made = Cluster(2, "--step-timeout", "20")
    try:
        yield made.start()
        made.stop()
    finally:
        made.close()
