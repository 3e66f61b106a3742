# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of nodes that do not share a directory: a run goes on from them wherever their parts have come to lie."""

import contextlib
import re
import shutil

import pytest
import trainers
from dmuon_client import DmuonError
from dmuon_fixtures import Cluster, Daemon
from trainers import bits, difference

# Another daemon may measure, and choose, another method of Newton-Schulz.
OTHER_METHODS = 1e-5
JOB, SAVED, STEPS = "node-local", 3, 5
FETCHED = re.compile(r"restored from checkpoint 'mid' .* (\d+) bytes of it from other nodes")  # the job's metrics end with it


@contextlib.contextmanager
def nodes_on(folders, slots=(2, 2)):
    """A cluster of which every node has its own of `folders`, and of `slots`."""
    made = Cluster(len(folders), "--step-timeout", "20",
                   node_flags=[["--checkpoint-dir", str(folder), "--slots", str(count)]
                               for folder, count in zip(folders, slots, strict=True)])
    try:
        yield made.start()
        made.stop()
    finally:
        made.close()


def train(pools, addresses, parallel="zero3", replicas=1, **keywords):
    run = pools(len(addresses)).run(trainers.train, addresses, JOB, parallel=parallel, replicas=replicas, steps=STEPS,
                                    **keywords)
    assert all(bits(a["params"][-1]) == bits(run[0]["params"][-1]) for a in run)
    return run[0]


def fetched(*nodes) -> int:
    """Bytes of the checkpoint that these nodes got from others."""
    return sum(int(FETCHED.search(node.log())[1]) for node in nodes)


@pytest.fixture(scope="module")
def calm(pools, tmp_path_factory):
    """A run that is saved on its way by two nodes; its two directories."""
    folders = [tmp_path_factory.mktemp(f"node-{i}") for i in range(2)]
    with nodes_on(folders) as cluster:
        run = train(pools, cluster.addresses(4), replicas=2, saves={SAVED: "mid"})
    for i, folder in enumerate(folders):
        assert [path.name.split(".")[3] for path in (folder / JOB).glob("mid.*.safetensors")] == [f"node-{i}"]
        assert (folder / JOB / "mid.json").exists()
    return run, folders


@pytest.fixture
def saved(calm, tmp_path):
    """Copies of the two directories, and an empty one."""
    folders = [tmp_path / f"copy-{i}" for i in range(2)]
    for folder, original in zip(folders, calm[1], strict=True):
        shutil.copytree(original, folder)
    (tmp_path / "empty").mkdir()
    return [*folders, tmp_path / "empty"]


def expect_it_goes_on(calm, loaded):
    assert loaded["resumed_at"] == SAVED
    assert bits(loaded["loaded"]) == bits(calm[0]["params"][SAVED - 1])
    for ours, theirs in zip(loaded["params"], calm[0]["params"][SAVED:], strict=True):
        assert difference(ours, theirs) <= OTHER_METHODS


@pytest.mark.parametrize("slots, workers, replicas", [((2, 2), 4, 2), ((2, 2), 4, 1), ((3, 1), 4, 2), ((1, 3), 2, 1)])
def test_two_nodes_go_on_with_any_owners(pools, calm, saved, slots, workers, replicas):
    with nodes_on(saved[:2], slots) as cluster:
        expect_it_goes_on(calm, train(pools, cluster.addresses(workers), replicas=replicas, load="mid"))
        assert slots == (2, 2) or fetched(*cluster.nodes) > 0


def test_nodes_whose_directories_changed_places_go_on(pools, calm, saved):
    with nodes_on([saved[1], saved[0]]) as cluster:
        expect_it_goes_on(calm, train(pools, cluster.addresses(4), replicas=2, load="mid"))
        assert fetched(*cluster.nodes) > 0


def test_a_node_with_an_empty_directory_gets_its_state_from_the_other(pools, calm, saved):
    both, second, empty = saved
    shutil.copytree(second, both, dirs_exist_ok=True)
    with nodes_on([empty, both]) as cluster:
        expect_it_goes_on(calm, train(pools, cluster.addresses(4), replicas=2, load="mid"))
        assert fetched(cluster.nodes[0]) > 0
        assert fetched(cluster.nodes[1]) == 0
    assert not list(empty.glob("*/*"))


def test_one_node_goes_on_from_both_parts(pools, calm, saved):
    both, second, _ = saved
    shutil.copytree(second, both, dirs_exist_ok=True)
    daemon = Daemon("--checkpoint-dir", str(both))
    try:
        daemon.start()
        expect_it_goes_on(calm, train(pools, [daemon.address], parallel="one", load="mid"))
        assert daemon.stop() == 0
    finally:
        daemon.close()


def load_in_vain(rank, world_size, addresses):
    """What load says; then a step goes as if nothing had been."""
    bag = trainers.wrap(trainers.make_small(False, trainers.torch.float32), "zero3", trainers.mesh_of(1))
    with trainers.dmuon.Muon(bag, job=JOB, address=addresses[rank], verbose=False, **trainers.HYPERS) as opt:
        with pytest.raises(DmuonError) as caught:
            opt.load("mid")
        trainers.backward(bag, trainers.tokens_of(0).chunk(world_size)[rank])
        opt.step()
        return str(caught.value), opt.last_step


@pytest.mark.parametrize("how, wanted", [("lost", "no node of the job has {part}, the part of node node-1"),
                                         ("damaged", "node node-0: .*{part}: the values of .* are not those that were saved")])
def test_a_part_that_is_lost_or_damaged_is_named_and_nothing_changes(pools, saved, how, wanted):
    (part,) = (saved[1] / JOB).glob("mid.*.safetensors")
    if how == "lost":
        part.unlink()
    else:
        data = bytearray(part.read_bytes())
        data[-1] ^= 1
        part.write_bytes(data)
    with nodes_on([saved[1], saved[0]]) as cluster:
        for message, last_step in pools(2).run(load_in_vain, cluster.addresses(2)):
            assert re.search("DMUON_CHECKPOINT: .*" + wanted.format(part=re.escape(part.name)), message), message
            assert last_step == 1
