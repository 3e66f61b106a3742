# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""A run that is saved and loaded ends as one that was never interrupted, whatever it ran on before and after."""

import functools
import shutil
import time

import dmuon_client as dmuon
import numpy as np
import pytest
import torch
import trainers
from dmuon_client import DmuonError, checkpoint
from dmuon_fixtures import Cluster, Daemon
from trainers import HYPERS, bits, difference, whole_params

# Gradients of other layouts are summed in another order.
OTHER_SUMS = 1e-6
# torch.optim.Muon runs Newton-Schulz in bf16.
BF16_NEWTON_SCHULZ = 2e-2
SAVED, STEPS = 4, 7


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def node(folder):
    """One daemon; it keeps its checkpoints where `nodes` does."""
    made = Daemon("--checkpoint-dir", str(folder))
    try:
        yield made.start()
        assert made.stop() == 0
    finally:
        made.close()


@pytest.fixture(scope="module")
def nodes(folder):
    made = Cluster(2, "--step-timeout", "20", "--checkpoint-dir", str(folder))
    try:
        yield made.start()
        made.stop()
    finally:
        made.close()


# nodes x (replicas x shards): workers, parallel, replicas
LAYOUTS = {"1: 1": (1, "one", 1), "1: 1x3": (3, "zero3", 1), "2: 2x2": (4, "zero3", 2), "2: 4x1": (4, "zero3", 1)}


@pytest.fixture(scope="module")
def train(pools, node, nodes):
    """train(layout, job, **keywords): what trainers.train reports of rank 0."""
    def run(layout, job, **keywords):
        workers, parallel, replicas = LAYOUTS[layout]
        address = node.address if layout.startswith("1:") else nodes.addresses(workers)
        runs = pools(workers).run(trainers.train, address, job, parallel=parallel, replicas=replicas, steps=STEPS,
                                  **keywords)
        assert all(bits(a["params"][-1]) == bits(runs[0]["params"][-1]) for a in runs)
        return runs[0]
    return run


@pytest.fixture(scope="module")
def uninterrupted(train):
    """uninterrupted(layout): a run that is saved on its way, once a module; its job is that of the layout."""
    return functools.cache(lambda layout: train(layout, f"matrix-{list(LAYOUTS).index(layout)}", saves={SAVED: "mid"}))


@pytest.mark.parametrize("after", LAYOUTS)
@pytest.mark.parametrize("before", ["1: 1", "1: 1x3", "2: 2x2"])
def test_a_checkpoint_is_loaded_on_any_workers_shards_and_nodes(train, uninterrupted, before, after):
    # cases rows 83, 84, 86, 93
    calm = uninterrupted(before)
    loaded = train(after, f"matrix-{list(LAYOUTS).index(before)}", load="mid")
    assert loaded["resumed_at"] == SAVED
    assert bits(loaded["loaded"]) == bits(calm["params"][SAVED - 1])
    if after == before:
        assert list(map(bits, loaded["params"])) == list(map(bits, calm["params"][SAVED:]))
    for ours, theirs in zip(loaded["params"], calm["params"][SAVED:], strict=True):
        assert difference(ours, theirs) <= OTHER_SUMS


@pytest.fixture
def make(node, job):
    """make(**keywords): a small model and its optimizer, both in this process."""
    made = []

    def build(**keywords):
        model = trainers.make_small(False, torch.float32)
        opt = dmuon.Muon(model, **{"job": job, "address": node.address, "verbose": False, **HYPERS, **keywords})
        made.append(opt)
        return model, opt

    yield build
    for opt in made:
        opt.close()


@pytest.mark.parametrize("sync", [True, False])
def test_a_run_may_go_back_and_ahead(make, sync):
    model, opt = make(sync=sync)
    trainers.run_to(model, opt, 2)
    opt.save("two")
    trainers.run_to(model, opt, 5)
    opt.save("five", wait=True)
    five = bits(whole_params(model))
    opt.load("two")
    assert (opt.last_step, opt.result) == (2, None)
    trainers.run_to(model, opt, 5)
    assert bits(whole_params(model)) == five
    opt.load("two")
    opt.load("five")
    assert opt.last_step == 5
    assert bits(whole_params(model)) == five


def test_a_step_that_is_on_its_way_is_in_the_checkpoint(make):
    model, opt = make(sync=False)
    trainers.run_to(model, opt, 2)
    opt.zero_grad()
    trainers.backward(model, trainers.tokens_of(2))
    opt.step()
    opt.save("three")
    three = bits(whole_params(model))
    opt.zero_grad()
    trainers.backward(model, trainers.tokens_of(3))
    opt.step()
    opt.load("three")  # while the next one is on its way
    assert opt.last_step == 3
    assert bits(whole_params(model)) == three


def test_gradients_of_before_are_forgotten(make):
    model, opt = make(backward_passes_per_step=1)
    trainers.run_to(model, opt, 2)
    opt.save("two")
    trainers.run_to(model, opt, 4)
    four = bits(whole_params(model))
    opt.zero_grad()
    trainers.backward(model, trainers.tokens_of(9))  # handed over already, and never stepped
    opt.load("two")
    trainers.run_to(model, opt, 4)
    assert bits(whole_params(model)) == four


def test_a_trainer_that_outlives_the_service_goes_on_from_the_last_checkpoint(folder, job):
    daemon = Daemon("--checkpoint-dir", str(folder))
    try:
        daemon.start()
        model = trainers.make_small(False, torch.float32)
        with dmuon.Muon(model, job=job, address=daemon.address, verbose=False, **HYPERS) as opt:
            trainers.run_to(model, opt, 3)
            opt.save("three", wait=True)
            trainers.run_to(model, opt, 5)
            five = bits(whole_params(model))
            daemon.kill()
            daemon.start()
            with pytest.raises(DmuonError, match="DMUON_STATE_LOST"):
                trainers.run_to(model, opt, 6)
            opt.load("three")
            assert opt.last_step == 3
            trainers.run_to(model, opt, 5)
            assert bits(whole_params(model)) == five
    finally:
        daemon.close()


def test_hyper_parameters_are_the_trainers(make):
    # cases row 99: groups keep what they have, and a saved state_dict fits after load
    rules = [dmuon.Rule("muon", name="*.up.weight", group="bare", weight_decay=0.0)]
    model, opt = make(rules=rules)
    trainers.run_to(model, opt, 2)
    opt.param_groups[0]["lr"] = 0.5
    saved = opt.state_dict()
    opt.save("two", wait=True)
    opt.close()
    model, opt = make(rules=rules)
    with pytest.raises(ValueError, match=r"saved step is 2, but .* at step 0: .*opt\.load\(name\)"):
        opt.load_state_dict(saved)
    opt.load("two")
    assert opt.param_groups[0]["lr"] != 0.5
    opt.load_state_dict(saved)
    assert opt.param_groups[0]["lr"] == 0.5
    assert sorted({g["weight_decay"] for g in opt.param_groups}) == [0.0, 0.05, 0.1]


def test_frozen_parameters_are_not_in_it_and_keep_their_bits(node, folder, job):
    # cases row 96
    model = trainers.make_small(False, torch.float32)
    frozen = model.blocks[0].up.weight.requires_grad_(False)
    before = frozen.clone()
    with dmuon.Muon(model, job=job, address=node.address, verbose=False, **HYPERS) as opt:
        trainers.run_to(model, opt, 2)
        opt.save("two", wait=True)
        opt.load("two")
    assert torch.equal(frozen, before)
    assert "blocks.0.up.weight" not in checkpoint.read(folder / job)


SHAPES = {"huge": (61, 48), **{f"tiny{i}": (3, 8) for i in range(6)}, "bias": (5,), "column": (64, 1)}


@pytest.mark.parametrize("missing", ["zero", "skip"])
def test_contents_do_not_depend_on_who_owns_what(pools, node, nodes, folder, job, missing):
    # cases rows 19, 21, 63, 86, 87, 92: one huge matrix, many tiny ones, and one that rank 1 has no gradient of
    found = []
    for workers, address in ((1, node.address), (2, node.address), (4, nodes.addresses(4))):
        name = f"{job}.{workers}"
        keywords = dict(HYPERS, missing_gradient=missing)
        pools(workers).run(feed_without_tiny5, address, name, keywords=keywords)
        found.append(checkpoint.read(folder / name))
        assert checkpoint.step_of(folder / name) == 2
    for other in found[1:]:
        assert other.keys() == found[0].keys() == SHAPES.keys()
        for tensor, contents in other.items():
            assert contents.keys() == found[0][tensor].keys() >= {"weight", "momentum"}
            for quantity, values in contents.items():
                if isinstance(values, torch.Tensor):
                    assert torch.equal(values, found[0][tensor][quantity]), (tensor, quantity)
                else:
                    assert values == found[0][tensor][quantity], (tensor, quantity)
    never = found[0]["tiny5"]
    assert not never["momentum"].any()
    assert (never["updates"], found[0]["huge"]["updates"]) == (0 if missing == "skip" else 2, 2)
    assert (never["optimizer"], found[0]["bias"]["optimizer"]) == ("muon(ema)", "adamw")


def feed_without_tiny5(rank, world_size, address, job, *, keywords):
    def grads(step, _):
        return trainers.random_tensors(SHAPES, step) | {"tiny5": None}
    return trainers.feed(rank, world_size, address, job, SHAPES, steps=2, grads=grads, saves={2: "two"},
                         keywords=keywords)


def test_bf16_gradients_meet_the_fp32_checkpoint(pools, node, job):
    # cases row 77
    shapes = {"column": (64, 1), "w": (8, 6)}
    calm = pools(2).run(trainers.feed, node.address, job, shapes, steps=4, dtype=torch.bfloat16, saves={2: "two"})[0]
    again = pools(2).run(trainers.feed, node.address, job, shapes, steps=4, dtype=torch.bfloat16, load="two")[0]
    assert list(map(bits, again["params"])) == list(map(bits, calm["params"][2:]))


def await_saved(node, job: str, step: int) -> None:
    """Until the daemon has made the checkpoint of `step`, and so can make another."""
    deadline = time.monotonic() + 60.0
    while True:
        [status] = [entry["checkpoint"] for entry in node.status()["node"]["jobs"] if entry["job_id"] == job]
        if status.get("step") == str(step) and not status.get("progress"):
            return
        assert time.monotonic() < deadline, status
        time.sleep(0.01)


def test_the_first_step_after_a_checkpoint_of_step_0_is_the_first(node, job):
    # cases row 90: AdamW's bias correction begins with it
    model = torch.nn.ParameterDict({"bias": torch.nn.Parameter(torch.ones(4))})
    with dmuon.Muon(model, job=job, address=node.address, verbose=False, adamw={"lr": 0.125}) as opt:
        opt.save("start")
        for _ in range(2):
            model["bias"].grad = torch.ones(4)
            opt.step()
        opt.load("start")
        assert opt.last_step == 0
        assert torch.equal(model["bias"].detach(), torch.ones(4))
        model["bias"].grad = torch.ones(4)
        opt.step()
        torch.testing.assert_close(model["bias"].detach(), torch.full((4,), 0.875))


def test_torchs_optimizers_go_on_from_a_checkpoint(make, folder, job):
    # cases rows 87, 89, 97
    model, opt = make()
    trainers.run_to(model, opt, 3)
    opt.save("three", wait=True)
    trainers.run_to(model, opt, 6)
    ours = whole_params(model)
    tensors = checkpoint.read(folder / job / "three.json")
    plain = trainers.make_small(False, torch.float32)
    plain.load_state_dict({name: contents["weight"] for name, contents in tensors.items()})
    named = dict(plain.named_parameters())
    muon = torch.optim.Muon([p for n, p in named.items() if trainers.is_matrix(n)], lr=0.02, weight_decay=0.1,
                            adjust_lr_fn="original")
    adamw = torch.optim.AdamW([p for n, p in reversed(named.items()) if not trainers.is_matrix(n)], lr=3e-3,
                              betas=(0.9, 0.95), weight_decay=0.05)
    state = checkpoint.to_torch(tensors)
    for optimizer in (muon, adamw):
        optimizer.load_state_dict(checkpoint.state_dict_for(optimizer, plain, state))
    for step in range(3, 6):
        plain.zero_grad()
        trainers.backward(plain, trainers.tokens_of(step))
        muon.step()
        adamw.step()
    assert difference(whole_params(plain), ours) <= BF16_NEWTON_SCHULZ
    assert float(adamw.state[named["head.weight"]]["step"]) == 6


def test_the_service_saves_by_itself_and_keeps_the_last_ones(make, node, folder, job):
    model, opt = make(checkpoint_every_steps=2, checkpoint_keep=2)
    trainers.run_to(model, opt, 2)
    opt.save("mine", wait=True)
    for step in (4, 6, 8):
        trainers.run_to(model, opt, step)
        await_saved(node, job, step)  # one that is late makes the next fall out
    opt.save("last", wait=True)
    names = sorted(path.stem for path in (folder / job).glob("*.json"))
    assert names == ["last", "mine", "step-000000000006", "step-000000000008"]
    opt.load("step-000000000006")
    assert opt.last_step == 6


def test_an_unknown_checkpoint_is_named_and_training_goes_on(make):
    model, opt = make()
    trainers.run_to(model, opt, 1)
    with pytest.raises(DmuonError, match="DMUON_CHECKPOINT: .*nowhere"):
        opt.load("nowhere")
    trainers.run_to(model, opt, 2)
    with pytest.raises(DmuonError, match="DMUON_INVALID_ARGUMENT: .*'/'"):
        opt.save("a/b")
    assert opt.last_step == 2


def test_another_models_checkpoint_is_refused_by_tensor(node, job):
    for shapes, other in (({"w": (4, 6)}, {"w": (6, 4)}), ({"w": (4, 6)}, {"v": (4, 6)})):
        name = f"{job}.{'-'.join(other)}"
        trainers.feed(0, 1, node.address, name, shapes, layout="plain", steps=1, saves={1: "one"})
        bag = trainers.Bag(trainers.random_tensors(other, 0), "plain")
        before = bits(whole_params(bag))
        with dmuon.Muon(bag, job=name, address=node.address, verbose=False, **HYPERS) as opt:
            with pytest.raises(DmuonError, match=f"DMUON_CHECKPOINT: .*'?{next(iter(other))}'?"):
                opt.load("one")
            assert (bits(whole_params(bag)), opt.last_step) == (before, 0)
            bag.feed(trainers.random_tensors(other, 1))
            opt.step()


def load_or_step(rank, world_size, address, job):
    """Rank 0 loads while the others step; then all step."""
    shapes = {"w": (6, 4)}
    bag = trainers.Bag(trainers.random_tensors(shapes, 0), "rows")
    with dmuon.Muon(bag, job=job, address=address, verbose=False, **HYPERS) as opt:
        opt.save("start", wait=True)
        bag.feed(trainers.random_tensors(shapes, 1))
        with pytest.raises(DmuonError) as caught:
            opt.load("start") if rank == 0 else opt.step()
        opt.step()
        return str(caught.value), opt.last_step


def test_who_loads_while_others_step_is_named(pools, node, job):
    for message, last_step in pools(2).run(load_or_step, node.address, job):
        assert "start" in message and "step 1" in message
        assert last_step == 1


def test_a_service_without_a_directory_says_so(daemon, job):
    model = trainers.make_small(False, torch.float32)
    with dmuon.Muon(model, job=job, address=daemon.address, verbose=False, **HYPERS) as opt:
        for call in (opt.save, opt.load):
            with pytest.raises(DmuonError, match="DMUON_CHECKPOINT: .*--checkpoint-dir"):
                call("x")
        trainers.run_to(model, opt, 1)


def test_a_checkpoint_that_could_not_be_written_is_a_warning_of_the_next_call(tmp_path, job):
    daemon = Daemon("--checkpoint-dir", str(tmp_path / "gone"))
    try:
        daemon.start()
        model = trainers.make_small(False, torch.float32)
        with dmuon.Muon(model, job=job, address=daemon.address, verbose=False, **HYPERS) as opt:
            shutil.rmtree(tmp_path / "gone")
            opt.save("first")
            trainers.run_to(model, opt, 1)
            with pytest.warns(RuntimeWarning, match="checkpoint first is not known to exist: DMUON_CHECKPOINT"):
                opt.save("second")
            with pytest.raises(DmuonError, match="DMUON_CHECKPOINT"):
                opt.wait_saved()
            trainers.run_to(model, opt, 2)
    finally:
        daemon.close()


def test_a_damaged_checkpoint_is_refused_by_file(make, folder, job):
    model, opt = make()
    trainers.run_to(model, opt, 1)
    opt.save("one", wait=True)
    (part,) = (folder / job).glob("one.*.safetensors")
    data = np.fromfile(part, dtype=np.uint8)
    data[-1] ^= 1
    data.tofile(part)
    before = bits(whole_params(model))
    with pytest.raises(DmuonError, match=f"DMUON_CHECKPOINT: .*{part.name}"):
        opt.load("one")
    assert bits(whole_params(model)) == before
    trainers.run_to(model, opt, 2)
