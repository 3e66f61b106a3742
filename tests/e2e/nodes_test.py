# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""A job over two nodes, connected by Gloo, trains as one process does."""

import functools

import pytest
import trainers
from trainers import Small, bits, difference

STEPS = 30
FP32 = 1e-5

plain = functools.cache(trainers.train_plain)


def assert_like_plain(runs, addresses: list[str]) -> None:
    """Parity, replicas and shards bit-equal, and Newton-Schulz once in the cluster."""
    reference = plain(steps=STEPS)
    worst = max(difference(a, b) for a, b in zip(runs[0]["params"], reference, strict=True))
    assert worst <= FP32
    for run in runs[1:]:
        for step, (a, b) in enumerate(zip(run["params"], runs[0]["params"], strict=True), 1):
            assert bits(a) == bits(b), f"ranks differ after step {step}"
    first_of_node = [runs[addresses.index(address)] for address in set(addresses)]
    assert sum(run["calls"] for run in first_of_node) == Small.MATRICES * STEPS
    assert sum(run["units"] for run in first_of_node) == Small.MATRICES


@pytest.mark.parametrize(("workers", "parallel", "replicas"), [
    (2, "zero3", 1), (4, "zero3", 1), (4, "zero2", 1), (3, "zero3", 1), (4, "zero3", 2), (4, "shards", 2),
    (4, "shards", 4), (6, "shards", 2), (4, "ddp", 1), (4, "plain", 1), (4, "owned", 1)])
def test_thirty_steps_equal_plain_pytorch(pools, two_nodes, job, workers, parallel, replicas):
    # cases rows 16, 49: no mode gathers in silence, replicas stay equal
    addresses = two_nodes.addresses(workers)
    runs = pools(workers).run(trainers.train, addresses, job, parallel=parallel, replicas=replicas,
                              steps=STEPS)
    assert_like_plain(runs, addresses)


def test_workers_may_join_in_any_order(pools, two_nodes, job):
    first, second = (node.address for node in two_nodes.nodes)
    addresses = [second, first, first, second]
    runs = pools(4).run(trainers.train, addresses, job, parallel="shards", replicas=2, steps=STEPS)
    assert_like_plain(runs, addresses)


def test_two_runs_have_the_same_bits(pools, two_nodes, job):
    runs = [pools(4).run(trainers.train, two_nodes.addresses(4), f"{job}.{i}", parallel="shards", replicas=2,
                         steps=10)[0] for i in range(2)]
    assert list(map(bits, runs[0]["params"])) == list(map(bits, runs[1]["params"]))
