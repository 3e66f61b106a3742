# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""A soak: a coordinator, three nodes and six workers with copies of their state, for half an hour under the faults of the chaos
test, while nodes are drained, checkpoints are made, read and deleted and other jobs begin and end. What lives long must not grow, and no promise
may be broken.

    .venv/bin/python tests/e2e/soak.py [--minutes 30] [--seed N]

Nodes 0 and 1 live from beginning to end, the coordinator from the end of the warm-up (a fifth of the time); node 2 and the
workers are killed all the time. Samples are taken when only the long job runs and its steps go on (tests/support/series.py has
quantities and bounds). At the end: a table; that job's history against the checks of history.py, and its bits against an
undisturbed run's; exit code 1 when something is wrong.
"""

import argparse
import collections
import dataclasses
import os
import pathlib
import random
import shutil
import statistics
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
for folder in ("client/python", "tests/support", "tests/e2e"):
    sys.path.insert(0, str(ROOT / folder))
os.environ["DMUON_AUTOTUNE"] = "off"  # plans by operation counts: the undisturbed run has the same
# Many threads allocate for a moment now and then. With an arena for each, what malloc keeps in hand grows for an hour.
os.environ["MALLOC_ARENA_MAX"] = "1"

import chaos  # noqa: E402
import history  # noqa: E402
import series  # noqa: E402
from dmuon_client import _abi  # noqa: E402
from dmuon_fixtures import Cluster, Network  # noqa: E402

LONG, UNDISTURBED, ENDLESS = "long", "undisturbed", 1 << 30
MORTAL = 2  # the node that is killed
WARM_UP = 0.2  # of the time
MOMENTS_A_ROUND = 3
PAUSE_SECONDS = 0.05  # between steps: what is done in half an hour is done again undisturbed, without them
ORPHAN_SECONDS = 10.0  # what nobody comes back to; longer than a worker takes to start on a busy machine
REPORT_SECONDS = 60.0
STEPS_A_WAIT = 200  # of the undisturbed run; far more than chaos.PATIENCE_SECONDS has room for would be an error


class Soak:
    def __init__(self, cluster: Cluster, network: Network | None, folder: pathlib.Path, seed: int, seconds: float) -> None:
        self._cluster, self._network, self._folder = cluster, network, folder
        self._draw = random.Random(seed)
        kinds = chaos.LOCAL_FAULTS + 2 * chaos.LOSSES + 2 * chaos.OPERATIONS + (chaos.LINK_FAULTS if network else ())
        self._moments = chaos.draw_moments(self._draw, kinds)
        self._start = time.monotonic()
        self._warm_up_end, self._end = self._start + WARM_UP * seconds, self._start + seconds
        self._recorder = series.Recorder()
        self._done: collections.Counter[str] = collections.Counter()
        self._long = self._launch(LONG, chaos.PLACES, ENDLESS, checkpoint_every_steps=50, checkpoint_keep=2,
                                  pause_seconds=PAUSE_SECONDS)

    def _launch(self, job: str, places: tuple[int, ...], steps: int, **extras: object) -> chaos.Stage:
        mode = _abi.DMUON_REPLICATION_SYNC if len(set(places)) > 1 else _abi.DMUON_REPLICATION_NONE
        return chaos.Stage(self._cluster, self._network, job, self._folder, mode, steps, places, **extras)

    def run(self) -> list[str]:
        """What was wrong with it."""
        report_at = self._start + REPORT_SECONDS
        while time.monotonic() < self._end:
            for _ in range(MOMENTS_A_ROUND):
                self._long.suffer(self._spare(next(self._moments)))
                self._done["moments of faults"] += 1
            self._rest()
            self._draw.choice((self._save_verify_delete, self._other_job, self._other_job, self._abandoned_job))()
            if time.monotonic() >= report_at:
                report_at += REPORT_SECONDS
                print(self._progress(), flush=True)
        self._rest()
        verdicts = self._recorder.verdicts(self._warm_up_end)
        promises = self._end_and_compare()
        print(f"{self._progress()}\n{series.table(verdicts)}\nprocesses that were started again: {self._recorder.restarted()}")
        return promises + series.findings(verdicts, ["coordinator", "node-0", "node-1"])

    def close(self) -> None:
        self._long.close()

    def _spare(self, moment: chaos.Moment) -> chaos.Moment:
        """Who is to live long is not killed."""
        warming_up = time.monotonic() < self._warm_up_end
        faults = [dataclasses.replace(fault, victim=MORTAL) if fault.kind in chaos.LOSSES else fault for fault in moment.faults
                  if warming_up or fault.kind != "kill coordinator"]
        # Its own step is long gone: errands take time.
        step = self._long.last_step() + self._draw.randint(3, 10)
        return dataclasses.replace(moment, step=step, faults=tuple(faults))

    def _rest(self) -> None:
        """Until nothing but the long job is there, at work, and no node is drained; then a sample."""
        self._long.undrain()
        chaos.await_no_jobs(self._cluster, but=[LONG])
        self._long.await_step(self._long.last_step() + 3)
        pids = {f"node-{i}": node.pid for i, node in enumerate(self._cluster.nodes)}
        self._recorder.sample({"coordinator": self._cluster.coordinator_pid} | pids)
        self._done["samples"] += 1

    def _progress(self) -> str:
        taken = {name: self._recorder.latest(name) for name in ("coordinator", "node-0", "node-1", f"node-{MORTAL}")}
        return (f"{(time.monotonic() - self._start) / 60:.1f} min, step {self._long.last_step()}: "
                + ", ".join(f"{count} {what}" for what, count in sorted(self._done.items())) + "; MiB/descriptors/threads "
                + ", ".join(f"{name} {u.rss:.1f}/{u.descriptors}/{u.threads}" for name, u in taken.items()))

    # -- errands ----------------------------------------------------------------------------------------

    def _save_verify_delete(self) -> None:
        """As an operator does, at any node. Nobody is away now, but a coordinator that was killed last may not know all nodes."""
        node = self._draw.choice(self._cluster.nodes)
        deadline = time.monotonic() + chaos.PATIENCE_SECONDS
        while (saved := node.ctl("checkpoint", "save", LONG, "mine", check=False)).returncode != 0:
            assert time.monotonic() < deadline, saved.stderr
            self._done["saves to be repeated"] += 1
            print(f"repeated: {saved.stderr.strip()}")
            time.sleep(0.2)
        node.ctl("checkpoint", "verify", LONG, "mine")
        node.ctl("checkpoint", "delete", LONG, "mine")
        self._done["saves and deletes"] += 1

    def _places(self) -> tuple[int, ...]:
        """Of two workers."""
        return tuple(self._draw.choices(range(chaos.NODES), k=2))

    def _other_job(self) -> None:
        """It registers, trains for some steps, saves some of them, and ends in order."""
        steps = self._draw.randint(3, 12)
        self._done["other jobs"] += 1
        stage = self._launch(f"other-{self._done['other jobs']}", tuple(sorted(self._places())), steps,
                             checkpoint_every_steps=self._draw.randint(0, 3))
        try:
            wrong = history.findings(stage.finish(), steps)
            assert wrong == [], wrong
        finally:
            stage.close()
        chaos.await_no_jobs(self._cluster, but=[LONG])
        shutil.rmtree(self._folder / "checkpoints" / stage.job, ignore_errors=True)

    def _abandoned_job(self) -> None:
        """Its workers die and nobody comes back: its state goes when the nodes have waited long enough."""
        self._done["abandoned jobs"] += 1
        stage = self._launch(f"abandoned-{self._done['abandoned jobs']}", tuple(sorted(self._places())), ENDLESS)
        try:
            stage.await_step(self._draw.randint(1, 5))
        finally:
            stage.close()

    # -- the end ----------------------------------------------------------------------------------------

    def _end_and_compare(self) -> list[str]:
        steps = self._long.end_soon()
        disturbed = self._long.finish()
        chaos.await_no_jobs(self._cluster)
        print(f"the same {steps} steps undisturbed ...", flush=True)
        stage = self._launch(UNDISTURBED, chaos.PLACES, steps)
        try:
            for step in range(STEPS_A_WAIT, steps, STEPS_A_WAIT):
                stage.await_step(step)
            calm = stage.finish()
        finally:
            stage.close()
        chaos.await_no_jobs(self._cluster)
        for kind, seconds in sorted(history.pauses(disturbed).items()):
            print(f"{kind}: {len(seconds)} times, next step after {statistics.median(seconds):.2f} s, at most "
                  f"{max(seconds):.2f} s")
        left = self._cluster.status()["cluster"].get("jobs", [])
        return (history.findings(disturbed, steps, nodes_die=True)
                + history.differences(disturbed, calm, owners_change=True)[:10]
                + [f"step {fact['step']} was skipped" for fact in disturbed if fact.get("skipped")]
                + [f"the coordinator still knows job {job['job_id']}" for job in left])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    options = parser.parse_args()
    print(f"soak: --minutes {options.minutes:g} --seed {options.seed}", flush=True)
    network = chaos.make_network()
    with tempfile.TemporaryDirectory(prefix="dmuon-soak-") as name:
        folder = pathlib.Path(name)
        cluster = Cluster(chaos.NODES, "--step-timeout", str(chaos.STEP_TIMEOUT), "--attach-timeout", "0.5",
                          "--orphan-timeout", str(ORPHAN_SECONDS), "--checkpoint-dir", str(folder / "checkpoints"),
                          network=network)
        soak = None
        try:
            cluster.start()
            soak = Soak(cluster, network, folder, options.seed, 60.0 * options.minutes)
            wrong = soak.run()
            cluster.stop()
        except BaseException:
            log = pathlib.Path(tempfile.gettempdir(), f"dmuon-soak-{options.seed}.log")
            log.write_text(cluster.log())
            print(f"broken off; what the processes said: {log}", flush=True)
            raise
        finally:
            if soak:
                soak.close()
            cluster.close()
            if network:
                network.close()
    print(*wrong, f"soak: {'failed' if wrong else 'passed'}", sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
