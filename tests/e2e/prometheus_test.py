# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""Debian's own Prometheus scrapes a daemon."""

import json
import pathlib
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest

WAIT_SECONDS = 60.0

pytestmark = pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed")


def _get(url: str) -> dict | None:
    """The JSON at a URL; None while nobody answers."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=10) as answer:
            return json.loads(answer.read())
    except (urllib.error.URLError, ConnectionError):
        return None


class Prometheus:
    """A Prometheus that scrapes one target each second, in a directory of its own."""

    def __init__(self, directory: pathlib.Path, target: str) -> None:
        config = directory / "prometheus.yml"
        config.write_text(
            "global: {scrape_interval: 1s}\n"
            f"scrape_configs: [{{job_name: dmuon, static_configs: [{{targets: ['{target}']}}]}}]\n"
        )
        self._log = directory / "log"
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={directory}/tsdb",
                 "--web.listen-address=127.0.0.1:0"], stdout=log, stderr=log)
        self._port = self._wait(self._find_port, "a port in its log")

    def query(self, text: str) -> list[dict]:
        """The result of an instant query, as soon as it has one."""
        url = f"http://127.0.0.1:{self._port}/api/v1/query?{urllib.parse.urlencode({'query': text})}"
        return self._wait(lambda: (_get(url) or {}).get("data", {}).get("result"), f"an answer to {text}")

    def stop(self) -> int:
        self._process.terminate()
        try:
            return self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _find_port(self) -> str | None:
        for line in self._log.read_text(errors="replace").splitlines():
            if "Listening on" in line:
                return line.rpartition("address=")[2].split()[0].strip('"').rpartition(":")[2]
        return None

    def _wait(self, look, what: str):
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            if found := look():
                return found
            time.sleep(0.1)
        raise AssertionError(f"Prometheus has not {what}:\n{self._log.read_text(errors='replace')}")


@pytest.fixture
def prometheus(daemon, tmp_path):
    made = Prometheus(tmp_path, daemon.status()["node"]["metrics_address"])
    yield made
    assert made.stop() == 0


def test_the_daemon_is_up_and_says_what_it_runs(prometheus):
    assert prometheus.query('up{job="dmuon"} == 1')
    (build,) = prometheus.query("dmuon_build_info")
    assert build["value"][1] == "1"
    assert build["metric"]["version"] and build["metric"]["commit"] and build["metric"]["backend"]


def test_calls_to_the_daemon_show_up(prometheus):
    assert prometheus.query('dmuon_rpc_server_duration_seconds_count{method="dmuon.v1.NodeService/GetNodeStatus"}')


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_finds_nothing_to_complain_about(daemon):
    ours = [line for line in daemon.metrics().splitlines(keepends=True) if "dmuon_" in line]
    check = subprocess.run(["promtool", "check", "metrics"], input="".join(ours), text=True, capture_output=True)
    assert check.returncode == 0, check.stdout + check.stderr
