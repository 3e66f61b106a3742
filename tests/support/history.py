# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""What the workers of a run were told, in the order in which they were told it, and what must hold of it.

A history is a file of JSON lines, one a fact, that all processes of a run append to; `at` is in seconds. Facts of
a worker carry `rank`, `node`, `shard` (ranks of one shard hold the same piece of every tensor) and `life` (its pid):

    registered  generation, matrices
    begun       step (the last applied), digest
    asked       step
    done        step, skipped, replayed, grad_norm, calls, digest
    failed      code, message, and step if it was a step's

`digest` is of the parameters that the worker holds, `matrices` those that its node owns, `calls` the job's
Newton-Schulz calls there. Other facts, such as faults, are for the reader. A check yields a sentence for whatever
is wrong.
"""

import bisect
import collections
import itertools
import json
import operator
import os
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

Fact = dict[str, Any]
Check = Callable[[list[Fact], int], Iterator[str]]
# After this the step is still wanted; after any other error it is over.
STILL_WANTED = "DMUON_DEADLINE_EXCEEDED"


class History:
    """Appends whole lines: facts of several processes do not mix, and a killed one leaves none half."""

    def __init__(self, path: pathlib.Path, **common: Any) -> None:
        self._path, self._common = path, common
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def add(self, fact: str, **fields: Any) -> None:
        line = json.dumps({"at": round(time.monotonic(), 3), "fact": fact, **self._common, **fields})
        os.write(self._file, f"{line}\n".encode())

    def facts(self) -> list[Fact]:
        """All whole lines, while others may be writing one."""
        return [json.loads(line) for line in self._path.read_text().split("\n")[:-1]]

    def latest(self, size: int = 1 << 13) -> list[Fact]:
        """Those in the last `size` bytes, while others write: for whoever looks often."""
        with open(self._path, "rb") as file:
            file.seek(-min(size, file.seek(0, os.SEEK_END)), os.SEEK_END)
            whole = file.read().split(b"\n")[1:-1]
        return [json.loads(line) for line in whole]

    def close(self) -> None:
        os.close(self._file)


def last_steps(facts: list[Fact]) -> dict[int, int]:
    """By process: the last step that it was told to be done."""
    return {f["life"]: f["step"] for f in facts if f["fact"] in ("begun", "done")}


def _by(key: str, facts: list[Fact]) -> dict[Any, list[Fact]]:
    groups: dict[Any, list[Fact]] = {}
    for fact in facts:
        if key in fact:
            groups.setdefault(fact[key], []).append(fact)
    return groups


def _of_kind(kind: str, facts: list[Fact]) -> list[Fact]:
    return [fact for fact in facts if fact["fact"] == kind]


def no_step_is_applied_twice(facts: list[Fact], steps: int) -> Iterator[str]:
    for rank, own in _by("rank", facts).items():
        first = collections.Counter(f["step"] for f in _of_kind("done", own) if not f["replayed"])
        for step, times in sorted(first.items()):
            if times > 1:
                yield f"rank {rank} was told {times} times that step {step} has just been applied"


def steps_leave_no_gap(facts: list[Fact], steps: int) -> Iterator[str]:
    """Each rank goes from 1 to `steps`. A successor begins where its predecessor was, or one step later when
    that step had been asked for."""
    for rank, own in _by("rank", facts).items():
        at = asked = 0
        for fact in own:
            step = fact.get("step")
            expected = {"asked": {at + 1}, "done": {at + 1}, "begun": {at, max(at, asked)}}.get(fact["fact"])
            if expected is None:
                continue
            if step not in expected:
                yield f"rank {rank}: {fact['fact']} {step} when step {at} was its last"
            if fact["fact"] == "asked":
                asked = step
            else:
                at = step
        if at != steps:
            yield f"rank {rank} ends at step {at} of {steps}"


def all_ranks_agree_on_a_step(facts: list[Fact], steps: int) -> Iterator[str]:
    for step, same in _by("step", _of_kind("done", facts)).items():
        outcomes = {(f["skipped"], f["grad_norm"]) for f in same}
        if len(outcomes) > 1:
            yield f"step {step} has the outcomes {sorted(outcomes)}"


def replicas_hold_the_same_bits(facts: list[Fact], steps: int) -> Iterator[str]:
    """Ranks of one shard, a worker that came back, and a step that was delivered again."""
    for shard, own in _by("shard", [f for f in facts if "digest" in f]).items():
        for step, same in _by("step", own).items():
            digests = {f["digest"] for f in same}
            if len(digests) > 1:
                yield f"shard {shard} after step {step} has the digests {sorted(digests)}"


def acknowledged_steps_survive(facts: list[Fact], steps: int) -> Iterator[str]:
    """Whoever begins after a step was acknowledged to anybody begins with it."""
    acknowledged, known = 0, {}
    for fact in facts:
        if fact["fact"] == "done":
            acknowledged = max(acknowledged, fact["step"])
        elif fact["fact"] == "registered":
            known[fact["rank"]] = acknowledged
        elif fact["fact"] == "begun" and fact["step"] < known.get(fact["rank"], 0):
            yield f"rank {fact['rank']} begins at step {fact['step']} after step {known[fact['rank']]} was acknowledged"


def generations_never_fall(facts: list[Fact], steps: int) -> Iterator[str]:
    for rank, own in _by("rank", _of_kind("registered", facts)).items():
        generations = [f["generation"] for f in own]
        if generations != sorted(generations):
            yield f"rank {rank} sees the generations {generations}"


def failed_steps_are_asked_for_again(facts: list[Fact], steps: int) -> Iterator[str]:
    for life, own in _by("life", facts).items():
        wanted = None
        for fact in own:
            if fact["fact"] == "asked":
                wanted = fact["step"]
            elif fact["fact"] == "failed" and fact["code"] != STILL_WANTED:
                wanted = None
            elif fact["fact"] == "done":
                if wanted != fact["step"]:
                    yield f"rank {fact['rank']} (process {life}) is given step {fact['step']} and wants {wanted}"
                wanted = None


def every_matrix_is_worked_on_once_a_step(facts: list[Fact], steps: int) -> Iterator[str]:
    """By the count of the node that owns it, when no step was skipped; the first step that is wrong."""
    for node, own in _by("node", facts).items():
        owned = max((f["matrices"] for f in _of_kind("registered", own)), default=0)
        for step, calls in sorted((f["step"], f["calls"]) for f in _of_kind("done", own)):
            if calls != step * owned:
                yield f"node {node} owns {owned} matrices and counts {calls} Newton-Schulz calls after step {step}"
                break


def all_matrices_are_worked_on_once_a_step(facts: list[Fact], steps: int) -> Iterator[str]:
    """The same of all nodes together, whoever owns what in a step; the first step that is wrong."""
    first = {node: own[0]["matrices"] for node, own in _by("node", _of_kind("registered", facts)).items()}
    for step, same in sorted(_by("step", _of_kind("done", facts)).items()):
        calls = {f["node"]: f["calls"] for f in same}
        if calls.keys() == first.keys() and sum(calls.values()) != step * sum(first.values()):
            yield f"of {sum(first.values())} matrices after step {step} the nodes count {calls} Newton-Schulz calls"
            break


CHECKS: tuple[Check, ...] = (
    no_step_is_applied_twice, steps_leave_no_gap, all_ranks_agree_on_a_step, replicas_hold_the_same_bits,
    acknowledged_steps_survive, generations_never_fall, failed_steps_are_asked_for_again,
    every_matrix_is_worked_on_once_a_step)


def findings(facts: list[Fact], steps: int, nodes_die: bool = False, owners_change: bool = False) -> list[str]:
    """What is wrong with a run of `steps` steps, by the name of the check; empty when nothing is. `nodes_die`: a node
    that starts again counts its work from 0, and one that goes back does some of it twice. `owners_change`: nodes hand matrices
    over to each other."""
    checks = [check for check in CHECKS if not ((nodes_die or owners_change) and check is every_matrix_is_worked_on_once_a_step)]
    if owners_change and not nodes_die:
        checks.append(all_matrices_are_worked_on_once_a_step)
    return [f"{check.__name__}: {what}" for check in checks for what in check(facts, steps)]


def pauses(facts: list[Fact]) -> dict[str, list[float]]:
    """By kind of fault, the seconds from each until all ranks are told that the next step is done."""
    done = _of_kind("done", facts)
    all_at = {step: max(f["at"] for f in same) for step, same in _by("step", done).items()}
    reached = sorted((f["at"], f["step"]) for f in done)
    latest = list(itertools.accumulate((step for _, step in reached), max, initial=0))
    found: dict[str, list[float]] = {}
    for fault in _of_kind("fault", facts):
        before = latest[bisect.bisect_right(reached, fault["at"], key=operator.itemgetter(0))]
        if before + 1 in all_at:
            found.setdefault(fault["kind"], []).append(all_at[before + 1] - fault["at"])
    return found


def differences(facts: list[Fact], calm: list[Fact], owners_change: bool = False) -> list[str]:
    """Where a run went another way than an undisturbed one of the same inputs. `owners_change`: the norm is summed owner by
    owner, so its last bit depends on who they are."""
    def course(of: list[Fact]) -> dict[tuple[int, int], Any]:
        return {(f["step"], f["shard"]): (f["digest"], None if owners_change else f["grad_norm"]) for f in _of_kind("done", of)}

    expected = course(calm)
    return [f"step {step}, shard {shard}: {got} instead of {expected.get((step, shard))}"
            for (step, shard), got in sorted(course(facts).items()) if got != expected.get((step, shard))]
