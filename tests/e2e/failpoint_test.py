# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""A process dies at each of the named places (daemon/base/failpoint.h) in its turn: it is started again with nothing,
every promise of history.py is kept, and each step has the bits that it has in an undisturbed run."""

import concurrent.futures
import functools
import json
import re
import subprocess

import history
import pytest
from chaos import await_no_jobs
from dmuon_fixtures import Cluster, program, with_failpoints
from trial import PLACES, Trial

NODES, WORKERS, VICTIM = 3, len(PLACES), 2
STEPS, SAVE_EVERY = 36, 3
# The lives of a node, each with the place of its death. The first times are those of a step that all nodes begin
# with, or of a recovery.
STEP_DEATHS = ("step.reduced=exit@3", "step.judged=exit@2", "step.unit=exit@4", "step.published=exit@2",
               "step.concluded=exit@2", "copy.unit=exit@4", "copy.sent=exit@2", "recovery.fetched=exit",
               "recovery.published=exit", "copy.sent=exit", "save.copied=exit", "save.writing=exit@2",
               "save.written=exit", "save.committed=exit")
RESTORE_DEATHS = ("restore.read=exit", "restore.applied=exit")
HANDOVER_DEATHS = ("handover.met=exit", "handover.gathered=exit", "handover.published=exit", "handover.agreed=exit")
AFTERWARDS = "handover.done=exit"
# Of the coordinator, while a node is drained or (True) may own units again.
OPERATION_DEATHS = (("coordinator.plan_made=exit", False), ("coordinator.succeeded=exit", False),
                    ("CoordinatorService/DrainNode=exit", True))
COORDINATOR_DEATHS = ("coordinator.generation_stored=exit@2", "coordinator.plan_made=exit",
                      "CoordinatorService/NextAttempt=exit", "CoordinatorService/ReportPart=exit@2",
                      "CoordinatorService/ReleaseJob=exit@2")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    saves, state = tmp_path_factory.mktemp("saves"), tmp_path_factory.mktemp("state")
    made = Cluster(NODES, "--step-timeout", "1", "--attach-timeout", "0.5", "--checkpoint-dir", str(saves),
                   coordinator_flags=("--state-dir", str(state)))
    try:
        yield made.start()
        made.stop()
    finally:
        made.close()


@pytest.fixture
def begin(cluster, tmp_path):
    """begin(job, steps, **options): a Trial."""
    trials = []

    def build(job, steps, **options):
        trials.append(Trial(cluster, job, tmp_path, PLACES, steps, save_every=SAVE_EVERY, **options))
        return trials[-1]

    yield build
    for trial in trials:
        trial.close()


@pytest.fixture(scope="module")
def calm(cluster, tmp_path_factory):
    trial = Trial(cluster, "calm", tmp_path_factory.mktemp("calm"), PLACES, STEPS, save_every=SAVE_EVERY)
    try:
        facts = trial.finish()
        trial.join()
    finally:
        trial.close()
    assert history.findings(facts, STEPS) == []
    return facts


def die_at_each(trial: Trial, cluster: Cluster, deaths: tuple[str, ...], launched: bool = False) -> None:
    """The victim's lives, one after the other. `launched`: the first one has begun."""
    node = cluster.nodes[VICTIM]
    for death in deaths:
        if not launched:
            node.kill()
            node.launch(death)
        launched = False
        trial.until(death, node.has_ended)
        assert f"failpoint {death.partition('=')[0]} strikes" in node.log()
    node.kill()
    node.start()


def saved(cluster: Cluster, job: str) -> list[str]:
    """Names of the checkpoints that exist."""
    listed = json.loads(cluster.nodes[VICTIM].ctl("--json", "checkpoint", "list", job).stdout)
    return [checkpoint["checkpoint"]["name"] for checkpoint in listed.get("checkpoints", [])]


def test_a_node_that_dies_anywhere_in_a_step_or_a_save_costs_no_bit(cluster, calm, begin):
    job = "anywhere"
    trial = begin(job, STEPS)
    trial.until("the second step", lambda: trial.last_step() >= 2)
    die_at_each(trial, cluster, STEP_DEATHS)
    facts = trial.finish()
    last = f"step-{STEPS // SAVE_EVERY * SAVE_EVERY}"
    trial.until(f"checkpoint {last}", lambda: last in saved(cluster, job))
    trial.join()
    assert history.findings(facts, STEPS, nodes_die=True) + history.differences(facts, calm) == []
    for name in saved(cluster, job):  # whole, or not there
        cluster.nodes[VICTIM].ctl("checkpoint", "verify", job, name)


def test_a_node_that_dies_in_a_restore_costs_a_repetition(cluster, calm, begin):
    """Another run of the calm job, which begins with one of its checkpoints."""
    step = 4 * SAVE_EVERY
    assert f"step-{step}" in saved(cluster, "calm")
    cluster.nodes[VICTIM].kill()
    cluster.nodes[VICTIM].launch(RESTORE_DEATHS[0])
    trial = begin("calm", step + SAVE_EVERY, load=f"step-{step}")
    die_at_each(trial, cluster, RESTORE_DEATHS, launched=True)
    facts = trial.finish()
    trial.join()
    assert [fact["step"] for fact in facts if fact["fact"] == "begun"] == WORKERS * [step]
    assert history.differences(facts, calm) + list(history.no_step_is_applied_twice(facts, STEPS)) == []


@pytest.fixture
def operator(cluster):
    """operator(node_id, undo=False): drains a node beside what the test does; its answer comes when that is done."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        yield functools.partial(pool.submit, cluster.drain)


def test_a_node_that_dies_anywhere_in_a_handover_costs_no_bit(cluster, calm, begin, operator):
    """One handover, of its own units, that breaks off wherever it can until all nodes have everything, and one to it."""
    trial = begin("drained", STEPS, pause_seconds=0.1)  # one without steps may have to wait for one to go over
    trial.until("the second step", lambda: trial.last_step() >= 2)
    for drained, deaths in ((VICTIM, HANDOVER_DEATHS), (0, (AFTERWARDS,))):
        cluster.nodes[VICTIM].kill()
        cluster.nodes[VICTIM].launch(deaths[0])
        answer = operator(f"node-{drained}", undo=False)
        die_at_each(trial, cluster, deaths, launched=True)
        trial.until("the end of the handover", answer.done)
        assert answer.result().returncode == 0, answer.result().stderr
        assert int(cluster.member(f"node-{drained}")["units"]) == 0
        if drained == VICTIM:
            assert cluster.drain(f"node-{drained}", undo=True).returncode == 0
    assert cluster.drain("node-0", undo=True).returncode == 0
    facts = trial.finish()
    trial.join()
    assert history.findings(facts, STEPS, nodes_die=True) + history.differences(facts, calm, owners_change=True) == []
    await_no_jobs(cluster)


def test_a_coordinator_that_dies_while_nodes_are_drained_costs_no_bit(cluster, calm, begin, operator):
    """The operator asks again when there is a coordinator again: twice for a drained node, twice for an undrained one."""
    trial, node_id = begin("operated", STEPS, pause_seconds=0.1), f"node-{VICTIM}"
    trial.until("the second step", lambda: trial.last_step() >= 2)
    cluster.kill_coordinator()
    cluster.start_coordinator(OPERATION_DEATHS[0][0])
    for number, (death, undo) in enumerate(OPERATION_DEATHS, 1):
        trial.until("the nodes' return", lambda: cluster.joined() == NODES)
        answer = operator(node_id, undo)
        trial.until(death, cluster.coordinator_has_ended)
        assert f"failpoint {death.partition('=')[0]} strikes" in cluster.coordinator_log()
        cluster.start_coordinator(*(death for death, _ in OPERATION_DEATHS[number:number + 1]))
        trial.until("the operator's answer", answer.done)
    trial.until("the nodes' return", lambda: cluster.joined() == NODES)
    again = cluster.drain(node_id, undo=True)
    assert again.returncode == 0, again.stderr
    assert int(cluster.member(node_id)["drained"]) == 0
    facts = trial.finish()
    trial.join()
    assert history.findings(facts, STEPS, owners_change=True) + history.differences(facts, calm, owners_change=True) == []
    await_no_jobs(cluster)


def test_a_coordinator_that_dies_anywhere_costs_no_bit(cluster, calm, begin):
    before = max(fact["generation"] for fact in calm if fact["fact"] == "registered")
    cluster.kill_coordinator()
    cluster.start_coordinator(COORDINATOR_DEATHS[0])
    steps = 2 * SAVE_EVERY
    trial = begin("coordinated", steps)
    for death in COORDINATOR_DEATHS:
        if death.startswith("CoordinatorService/ReleaseJob"):
            facts = trial.finish()
        trial.until(death, cluster.coordinator_has_ended)
        assert f"failpoint {death.partition('=')[0]} strikes" in cluster.coordinator_log()
        following = COORDINATOR_DEATHS.index(death) + 1
        cluster.start_coordinator(*COORDINATOR_DEATHS[following:following + 1])
    trial.join()
    assert history.findings(facts, steps) + history.differences(facts, calm) == []
    assert min(fact["generation"] for fact in facts if fact["fact"] == "registered") > before
    await_no_jobs(cluster)


def test_every_named_place_is_one_of_a_death(cluster):
    refused = subprocess.run([program("dmuond"), "--standalone"], env=with_failpoints("nowhere=exit"), check=False,
                             capture_output=True, text=True, timeout=60)
    assert refused.returncode == 1
    names = set(re.search(r"'nowhere' is no failpoint; there are: (.*)", refused.stderr)[1].split(", "))
    deaths = {death.partition("=")[0] for death in (*STEP_DEATHS, *RESTORE_DEATHS, *HANDOVER_DEATHS, AFTERWARDS,
                                                         *(death for death, _ in OPERATION_DEATHS), *COORDINATOR_DEATHS)}
    assert {name for name in names if "/" not in name} == {death for death in deaths if "/" not in death}
    assert deaths <= names
