# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""Each check of a history is silent on a run as it should be, and finds what it is for."""

from collections.abc import Callable

import history
import pytest
from history import Fact, History

STEPS = 3
Key = tuple[str, int, int]  # fact, rank, step
Change = Callable[[list[Fact]], None]


def told(fact: str, rank: int, **fields) -> Fact:
    return {"fact": fact, "rank": rank, "node": rank, "shard": 0, "life": 10 + rank, **fields}


def begun(rank: int, step: int, **fields) -> list[Fact]:
    return [told("registered", rank, generation=1, matrices=2, **fields),
            told("begun", rank, step=step, digest=f"bits {step}", **fields)]


def asked(rank: int, step: int) -> Fact:
    return told("asked", rank, step=step)


def done(rank: int, step: int, **fields) -> Fact:
    return told("done", rank, **{"step": step, "skipped": 0, "replayed": 0, "grad_norm": 1.5, "calls": 2 * step,
                                 "digest": f"bits {step}"} | fields)


def a_run() -> list[Fact]:
    """Two replicas, each on a node of its own: two registered, two begun, then two asked and two done a step."""
    steps = [fact(rank, step) for step in (1, 2, 3) for fact in (asked, done) for rank in (0, 1)]
    return begun(0, 0) + begun(1, 0) + steps


def at(facts: list[Fact], which: Key) -> int:
    return next(i for i, f in enumerate(facts) if (f["fact"], f["rank"], f.get("step")) == which)


def replace(which: Key, *facts: Fact) -> Change:
    def change(run: list[Fact]) -> None:
        place = at(run, which)
        run[place:place + 1] = facts
    return change


def insert(after: Key, *facts: Fact) -> Change:
    def change(run: list[Fact]) -> None:
        place = at(run, after) + 1
        run[place:place] = facts
    return change


def alter(which: Key, **fields) -> Change:
    return lambda run: run[at(run, which)].update(fields)


def remove(which: Key) -> Change:
    return replace(which)


def failed(code: str) -> Fact:
    return told("failed", 0, step=2, code=code, message="")


def changed(change: Change) -> list[Fact]:
    run = a_run()
    change(run)
    return run


@pytest.mark.parametrize("change", [
    lambda run: None,
    insert(("asked", 0, 2), failed("DMUON_DEADLINE_EXCEEDED")),
    insert(("asked", 0, 2), failed("DMUON_PEER_LOST"), asked(0, 2)),
    alter(("done", 0, 2), replayed=1),
    insert(("done", 0, 2), *begun(0, 2, life=20)),
    replace(("done", 0, 2), *begun(0, 2, life=20)),
    insert(("done", 1, 2), {"fact": "fault", "kind": "cut link"}),
], ids=["calm", "a timeout", "asked again", "delivered again", "a successor", "a successor who knows more", "a fault"])
def test_a_run_as_it_should_be_has_no_findings(change):
    assert history.findings(changed(change), STEPS) == []


@pytest.mark.parametrize(("check", "change"), [
    ("no_step_is_applied_twice", insert(("done", 0, 2), asked(0, 2), done(0, 2))),
    ("steps_leave_no_gap", remove(("done", 1, 2))),
    ("steps_leave_no_gap", remove(("done", 1, 3))),
    ("steps_leave_no_gap", insert(("done", 1, 1), *begun(1, 2, life=20))),
    ("all_ranks_agree_on_a_step", alter(("done", 1, 2), grad_norm=1.25)),
    ("all_ranks_agree_on_a_step", alter(("done", 1, 2), skipped=1)),
    ("replicas_hold_the_same_bits", alter(("done", 1, 2), digest="others")),
    ("replicas_hold_the_same_bits", alter(("done", 0, 2), replayed=1, digest="others")),
    ("replicas_hold_the_same_bits", alter(("begun", 1, 0), digest="others")),
    ("acknowledged_steps_survive", insert(("done", 0, 2), *begun(1, 1, life=20))),
    ("generations_never_fall", insert(("done", 0, 2), told("registered", 0, generation=0, matrices=2))),
    ("failed_steps_are_asked_for_again", insert(("asked", 0, 2), failed("DMUON_PEER_LOST"))),
    ("failed_steps_are_asked_for_again", remove(("asked", 0, 2))),
    ("every_matrix_is_worked_on_once_a_step", alter(("done", 1, 3), calls=4)),
    ("every_matrix_is_worked_on_once_a_step", alter(("done", 1, 3), calls=8)),
])
def test_each_check_finds_its_fault(check, change):
    assert check in {finding.split(":")[0] for finding in history.findings(changed(change), STEPS)}


def test_a_run_of_other_bits_differs_from_a_calm_one():
    assert history.differences(a_run(), a_run()) == []
    (difference,) = history.differences(changed(alter(("done", 1, 2), digest="others")), a_run())
    assert difference.startswith("step 2, shard 0: ('others'")


def test_facts_come_back_as_they_were_written(tmp_path):
    writers = [History(tmp_path / "run.jsonl", rank=rank) for rank in (0, 1)]
    for writer in writers:
        writer.add("asked", step=1)
    facts = writers[0].facts()
    assert [(f["fact"], f["rank"], f["step"]) for f in facts] == [("asked", 0, 1), ("asked", 1, 1)]
    assert facts[0]["at"] <= facts[1]["at"]
    assert writers[1].latest() == facts[1:] and writers[1].latest(20) == []
    for writer in writers:
        writer.close()


def test_a_pause_lasts_until_all_ranks_have_the_step_after_the_fault():
    fault = {"fact": "fault", "kind": "kill node"}
    run = [done(0, 1, at=1.0), done(1, 1, at=1.5), fault | {"at": 1.25}, fault | {"at": 2.0}, done(0, 2, at=3.0), done(1, 2, at=4.0),
           fault | {"at": 5.0}]
    assert history.pauses(run) == {"kill node": [2.75, 2.0]}
