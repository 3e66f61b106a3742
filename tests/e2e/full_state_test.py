# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""The whole state in torch's layout: out of the service and back in, from torch's optimizers and to them."""

import copy

import dmuon_client as dmuon
import pytest
import torch
import torch.distributed.checkpoint as dcp
import trainers
from dmuon_client import DmuonError
from dmuon_client.options import VARIANTS
from dmuon_fixtures import Daemon
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from trainers import HYPERS, bits, difference, whole_params

# Gradients of other layouts are summed in another order.
OTHER_SUMS = 1e-6
# torch.optim.Muon runs Newton-Schulz in bf16.
BF16_NEWTON_SCHULZ = 2e-2
SAVED, STEPS = 4, 7


@pytest.fixture
def make(module_daemon, job):
    """make(**keywords): a small model and its optimizer, both in this process; each a job of its own."""
    made = []

    def build(**keywords):
        model = trainers.make_small(False, torch.float32)
        opt = dmuon.Muon(model, **{"job": f"{job}.{len(made)}", "address": module_daemon.address, "verbose": False, **HYPERS,
                                   **keywords})
        made.append(opt)
        return model, opt

    yield build
    for opt in made:
        opt.close()


class Plain:
    """The same model with torch's optimizers."""

    def __init__(self) -> None:
        self.model = trainers.make_small(False, torch.float32)
        named = dict(self.model.named_parameters())
        self.optimizers = (
            torch.optim.Muon([p for n, p in named.items() if trainers.is_matrix(n)], lr=HYPERS["lr"],
                             weight_decay=HYPERS["weight_decay"], adjust_lr_fn="original"),
            torch.optim.AdamW([p for n, p in reversed(named.items()) if not trainers.is_matrix(n)], betas=(0.9, 0.95),
                              **HYPERS["adamw"]))

    def run(self, first: int, end: int) -> None:
        for step in range(first, end):
            self.model.zero_grad()
            trainers.backward(self.model, trainers.tokens_of(step))
            for optimizer in self.optimizers:
                optimizer.step()


FULL = StateDictOptions(full_state_dict=True)


def same_state(one, other) -> bool:
    """Bit for bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other) and one.dtype == other.dtype
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_state(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same_state, one, other))
    return one == other


# -- torch -----------------------------------------------------------------------------------------

def test_a_run_of_torchs_optimizers_goes_on_in_the_service(make):
    plain = Plain()
    plain.run(0, 3)
    state = get_optimizer_state_dict(plain.model, plain.optimizers, options=FULL)
    model, opt = make()
    model.load_state_dict(plain.model.state_dict())
    opt.load_full_state_dict(state)
    assert opt.last_step == 3
    assert bits(whole_params(model)) == bits(whole_params(plain.model))
    taken = opt.full_state_dict()
    assert same_state(taken["state"], state["state"])
    plain.run(3, 6)
    trainers.run_to(model, opt, 6)
    assert difference(whole_params(plain.model), whole_params(model)) <= BF16_NEWTON_SCHULZ


def test_torchs_optimizers_go_on_from_a_run_of_the_service(make):
    model, opt = make()
    trainers.run_to(model, opt, 3)
    state = opt.full_state_dict()
    trainers.run_to(model, opt, 6)
    plain = Plain()
    plain.model.load_state_dict(state["weights"])
    set_optimizer_state_dict(plain.model, plain.optimizers, state, options=FULL)
    for optimizer in plain.optimizers:
        assert optimizer.param_groups[0]["lr"] in (HYPERS["lr"], HYPERS["adamw"]["lr"])
    plain.run(3, 6)
    assert difference(whole_params(plain.model), whole_params(model)) <= BF16_NEWTON_SCHULZ
    again = get_optimizer_state_dict(plain.model, plain.optimizers, options=FULL)
    assert {float(again["state"][name]["step"]) for name in ("head.weight", "blocks.0.norm.bias")} == {6.0}


def test_the_layout_is_that_of_torch(make):
    plain = Plain()
    plain.run(0, 1)
    theirs = get_optimizer_state_dict(plain.model, plain.optimizers, options=FULL)
    model, opt = make()
    trainers.run_to(model, opt, 1)
    ours = opt.full_state_dict()
    assert ours.keys() - theirs.keys() == {"weights", "step"}
    assert ours["state"].keys() == theirs["state"].keys()
    for name, state in theirs["state"].items():
        assert {key: (value.shape, value.dtype) for key, value in ours["state"][name].items()} == {
            key: (value.shape, value.dtype) for key, value in state.items()}, name
    keys = {tuple(sorted(group)): sorted(group["params"]) for group in theirs["param_groups"]}
    assert {tuple(sorted(group)): sorted(group["params"]) for group in ours["param_groups"]} == keys


def test_a_sum_of_gradients_is_torchs_mean_outside(make):
    model, opt = make(momentum_form="accumulate", momentum=0.875)
    trainers.run_to(model, opt, 3)
    state = opt.full_state_dict()
    trainers.run_to(model, opt, 6)
    again, other = make(momentum_form="accumulate", momentum=0.875)
    other.load_full_state_dict(state)
    torch.testing.assert_close(other.full_state_dict()["state"], state["state"], rtol=1e-6, atol=0)
    trainers.run_to(again, other, 6)
    assert difference(whole_params(again), whole_params(model)) <= OTHER_SUMS
    mean, averaged = make(momentum=0.875)  # the same run, but for the momentum's form
    trainers.run_to(mean, averaged, 1)
    summed, sums = make(momentum_form="accumulate", momentum=0.875)
    trainers.run_to(summed, sums, 1)
    name = "blocks.0.up.weight"
    torch.testing.assert_close(sums.full_state_dict()["state"][name], averaged.full_state_dict()["state"][name],
                               rtol=1e-6, atol=0)


def test_torchs_distributed_checkpoint_takes_it_and_gives_it_back(make, tmp_path):
    model, opt = make()
    trainers.run_to(model, opt, 3)
    state = opt.full_state_dict()
    dcp.save({"optim": state}, checkpoint_id=tmp_path)
    trainers.run_to(model, opt, 5)
    again, other = make()
    template = {"optim": other.full_state_dict()}
    dcp.load(template, checkpoint_id=tmp_path)
    assert same_state(template["optim"], state)
    other.load_full_state_dict(template["optim"])
    assert other.last_step == 3
    trainers.run_to(again, other, 5)
    assert bits(whole_params(again)) == bits(whole_params(model))


def test_a_distributed_checkpoint_of_torchs_optimizers_is_taken(make, tmp_path):
    plain = Plain()
    plain.run(0, 3)
    dcp.save({"model": plain.model.state_dict(),
              "optim": get_optimizer_state_dict(plain.model, plain.optimizers, options=FULL)}, checkpoint_id=tmp_path)
    model, opt = make()
    # torch numbers groups in the order of its optimizers, and loads no others.
    template = {"model": model.state_dict(), "optim": {"state": opt.full_state_dict()["state"]}}
    dcp.load(template, checkpoint_id=tmp_path)
    model.load_state_dict(template["model"])
    opt.load_full_state_dict(template["optim"])
    assert opt.last_step == 3
    plain.run(3, 5)
    trainers.run_to(model, opt, 5)
    assert difference(whole_params(plain.model), whole_params(model)) <= BF16_NEWTON_SCHULZ


# -- any workers, shards and nodes ------------------------------------------------------------------

def train(rank, world_size, address, job, *, replicas=1, state=None, broadcast=False, rank0_only=False):
    """Steps to STEPS; the parameters of each, and the whole state after step SAVED. `state`: to begin with."""
    whole = trainers.mesh_of(replicas)
    model = trainers.wrap(trainers.make_small(False, torch.float32), "zero3", whole)
    where = address if isinstance(address, str) else address[rank]
    with dmuon.Muon(model, job=job, address=where, verbose=False, **HYPERS) as opt:
        if state is not None:
            opt.load_full_state_dict(state if rank == 0 or not broadcast else None, broadcast_from_rank0=broadcast)
        taken, history = None, {}
        if opt.last_step:
            history[opt.last_step] = whole_params(model)
        for step in range(opt.last_step, STEPS):
            opt.zero_grad()
            trainers.backward(model, trainers.tokens_of(step).chunk(world_size)[rank])
            opt.step()
            if step + 1 == SAVED:
                taken = opt.full_state_dict(rank0_only=rank0_only)
            history[step + 1] = whole_params(model)
        return taken, history, opt.plan


# workers, replicas, nodes
LAYOUTS = {"1: 3": (3, 1, 1), "2: 2x2": (4, 2, 2), "2: 4": (4, 1, 2)}


@pytest.fixture(scope="module")
def run(pools, module_daemon, two_nodes):
    def on(layout, job, **keywords):
        workers, replicas, on_nodes = LAYOUTS[layout]
        address = module_daemon.address if on_nodes == 1 else two_nodes.addresses(workers)
        results = pools(workers).run(train, address, job, replicas=replicas, **keywords)
        assert {plan.nodes for _, _, plan in results} == {on_nodes}
        for _, history, _ in results:
            assert {step: bits(params) for step, params in history.items()} == {
                step: bits(params) for step, params in results[0][1].items()}
        return [taken for taken, _, _ in results], results[0][1]
    return on


@pytest.fixture(scope="module")
def calm(run):
    """(the whole state after step SAVED, parameters by step) of a run of two two_nodes."""
    states, history = run("2: 2x2", "full-calm")
    assert all(same_state(state, states[0]) for state in states)
    return states[0], history


@pytest.mark.parametrize(("after", "broadcast"), [("1: 3", False), ("1: 3", True), ("2: 2x2", False), ("2: 2x2", True),
                                                  ("2: 4", True)])
def test_a_run_goes_on_on_any_workers_shards_and_nodes(run, calm, job, after, broadcast):
    state, uninterrupted = calm
    _, history = run(after, job, state=state, broadcast=broadcast)
    assert bits(history[SAVED]) == bits(uninterrupted[SAVED])
    for step in range(SAVED + 1, STEPS + 1):
        assert difference(history[step], uninterrupted[step]) <= OTHER_SUMS
        if after == "2: 2x2":
            assert bits(history[step]) == bits(uninterrupted[step])


def test_only_rank_0_need_have_it(run, calm, job):
    states, _ = run("2: 2x2", job, rank0_only=True)
    assert same_state(states[0], calm[0])
    assert states[1:] == [{}] * 3


def sharded_state(rank, world_size, address, job):
    """A run of torch's optimizers on sharded parameters, whose sharded state dict is handed over as it is."""
    model = trainers.wrap(trainers.make_small(False, torch.float32), "zero3")
    optimizer = torch.optim.AdamW(model.parameters(), **HYPERS["adamw"])
    for step in range(2):
        optimizer.zero_grad()
        trainers.backward(model, trainers.tokens_of(step).chunk(world_size)[rank])
        optimizer.step()
    state = get_optimizer_state_dict(model, optimizer)
    full = get_optimizer_state_dict(model, optimizer, options=FULL)
    before = whole_params(model)
    with dmuon.Muon(model, job=job, address=address, verbose=False, rules=[dmuon.Rule("adamw")], **HYPERS) as opt:
        opt.load_full_state_dict(state)
        assert bits(whole_params(model)) == bits(before)
        return same_state(opt.full_state_dict()["state"], full["state"]), opt.last_step


def test_sharded_tensors_are_taken_too(pools, module_daemon, job):
    assert pools(2).run(sharded_state, module_daemon.address, job) == [(True, 2)] * 2


def differing(rank, world_size, address, job):
    """Both workers give a dictionary of their own; then one gives one that does not fit."""
    model = trainers.wrap(trainers.make_small(False, torch.float32), "zero3")
    with dmuon.Muon(model, job=job, address=address[rank], verbose=False, **HYPERS) as opt:
        state = opt.full_state_dict()
        state["weights"]["head.weight"] += rank
        with pytest.raises(DmuonError, match="DMUON_CHECKPOINT: .*node-0 restores what .* node node-1 what"):
            opt.load_full_state_dict(state)
        if rank == 1:
            del state["state"]["head.weight"]
        with pytest.raises(ValueError, match=r"head\.weight: the dictionary has no state of it") as caught:
            opt.load_full_state_dict(state)
        opt.zero_grad()
        trainers.backward(model, trainers.tokens_of(0).chunk(world_size)[rank])
        opt.step()
        return str(caught.value)


def test_workers_that_bring_something_else_are_told_on_all(pools, two_nodes, job):
    told = pools(2).run(differing, two_nodes.addresses(2), job)
    assert told[0].startswith("load_full_state_dict failed on rank 1: ValueError: head.weight")
    assert told[1].startswith("head.weight")


# -- every optimizer -------------------------------------------------------------------------------

SHAPES = {"wide": (8, 12), "experts": (2, 12, 6), "fused": (24, 16), "column": (64, 1), "b": (5,), "scalar": ()}
RULES = [dmuon.Rule("muon", name="experts", view=dmuon.Experts(dmuon.GateUp("interleaved"))),
         dmuon.Rule("muon", name="fused", view=dmuon.RowBlocks((2, 6, 16))), dmuon.Rule("adamw", name="scalar"),
         dmuon.Rule("muon", name="column")]


@pytest.mark.parametrize(("variant", "keywords"), [(variant, {}) for variant in VARIANTS] + [
    ("numuon", {"rank_steps": 10, "rank_end": 0.5})])
def test_every_variants_state_comes_back_bit_for_bit(module_daemon, job, variant, keywords):
    found = []
    for part in ("first", "second"):
        bag = trainers.Bag(trainers.random_tensors(SHAPES, 0), "plain")
        with dmuon.Muon(bag, job=f"{job}.{part}", address=module_daemon.address, verbose=False, variant=variant, rules=RULES,
                        **keywords) as opt:
            if found:
                opt.load_full_state_dict(found[0][0])
                assert opt.last_step == 2
                assert same_state(opt.full_state_dict(), found[0][0])
            states = []
            for step in range(opt.last_step + 1, 5):
                bag.feed(trainers.random_tensors(SHAPES, step))
                opt.step()
                states.append(opt.full_state_dict())
            found.append((states[1], bits(whole_params(bag)), states[-1]))
    assert found[1][1] == found[0][1]
    assert same_state(found[1][2], found[0][2])


def test_the_masters_are_more_than_the_models_parameters(module_daemon, job):
    shapes = {"w": (8, 6), "b": (5,)}
    bag = trainers.Bag({name: tensor.bfloat16() for name, tensor in trainers.random_tensors(shapes, 0).items()}, "plain")
    with dmuon.Muon(bag, job=job, address=module_daemon.address, verbose=False, **HYPERS) as opt:
        bag.feed(trainers.random_tensors(shapes, 1))
        opt.step()
        state = opt.full_state_dict()
        for name, p in bag.named_parameters():
            master = state["weights"][name]
            assert master.dtype == torch.float32 and torch.equal(master.bfloat16(), p)
            assert not torch.equal(master, p.float())
        opt.load_full_state_dict({**state, "weights": None})
        assert torch.equal(opt.full_state_dict()["weights"]["w"], bag.get_parameter("w").float())


# -- errors ----------------------------------------------------------------------------------------

def changed(state, path, value=None):
    """A copy whose item at `path` is another, or absent."""
    made = copy.deepcopy(state)
    at = made
    for key in path[:-1]:
        at = at[key]
    if value is None:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return made


UP, HEAD = "blocks.0.up.weight", "head.weight"
NAN = torch.full((17, 12), 1.0).index_put((torch.tensor(3), torch.tensor(4)), torch.tensor(float("nan")))


@pytest.mark.parametrize(("path", "value", "error", "complaint"), [
    (("state", HEAD), None, ValueError, r"head\.weight: the dictionary has no state of it"),
    (("weights", HEAD), None, ValueError, r"head\.weight: the dictionary has no weight of it"),
    (("state", HEAD, "exp_avg"), None, ValueError, r"head\.weight: adamw keeps .*: exp_avg is missing"),
    (("state", UP, "momentum_buffer"), torch.zeros(12, 29), ValueError,
     r"blocks\.0\.up\.weight: momentum is shape \(12, 29\), the parameter has shape \(29, 12\)"),
    (("state", "nobody"), {"momentum_buffer": torch.zeros(2)}, ValueError, "\"state\" has nobody, which the job has not"),
    (("weights", "nobody"), torch.zeros(2), ValueError, "\"weights\" has nobody, which the job has not"),
    (("state", UP), {"exp_avg": torch.zeros(29, 12), "exp_avg_sq": torch.zeros(29, 12), "step": torch.tensor(2.0)},
     ValueError, r"blocks\.0\.up\.weight: muon\(ema\) keeps momentum_buffer: momentum_buffer is missing"),
    (("state", HEAD, "max_exp_avg_sq"), torch.zeros(17, 12), ValueError, r"head\.weight: .*max_exp_avg_sq has no place"),
    (("state", HEAD, "step"), torch.tensor(1.5), ValueError, r"head\.weight: step is 1\.5"),
    (("state", HEAD, "exp_avg"), NAN, DmuonError, r"DMUON_CHECKPOINT: .*an element of head\.weight/momentum is not finite"),
    (("weights", HEAD), NAN, DmuonError, r"DMUON_CHECKPOINT: .*an element of head\.weight/weight is not finite"),
    (("step",), -1, ValueError, "step is -1"),
    (("state",), [], ValueError, "\"state\", a dictionary"),
])
def test_what_does_not_fit_is_named_and_changes_nothing(make, path, value, error, complaint):
    model, opt = make()
    trainers.run_to(model, opt, 2)
    before, params = opt.full_state_dict(), bits(whole_params(model))
    with pytest.raises(error, match=complaint):
        opt.load_full_state_dict(changed(before, path, value))
    assert opt.last_step == 2
    assert bits(whole_params(model)) == params
    assert same_state(opt.full_state_dict(), before)
    trainers.run_to(model, opt, 3)


def test_another_optimizers_state_is_refused_by_name(make):
    model, opt = make(variant="normuon", lr=0.02)
    trainers.run_to(model, opt, 1)
    state = opt.full_state_dict()
    _, other = make()
    with pytest.raises(ValueError, match=r"blocks\.0\.up\.weight: muon\(ema\) keeps momentum_buffer"):
        other.load_full_state_dict(state)
    _, adamuon = make(variant="adamuon", lr=0.02)  # has a second moment too, of every element
    with pytest.raises(DmuonError, match="DMUON_CHECKPOINT: .*'second_moment' of tensor 'blocks"):
        adamuon.load_full_state_dict(state)


def test_a_state_without_a_step_needs_one(module_daemon, job):
    bag = trainers.Bag({"w": torch.ones(4, 3)}, "plain")
    muon = torch.optim.Muon(bag.parameters())
    bag.feed({"w": torch.eye(4, 3)})
    muon.step()
    state = get_optimizer_state_dict(bag, muon, options=FULL)
    with dmuon.Muon(bag, job=job, address=module_daemon.address, verbose=False, rules=[dmuon.Rule("muon")]) as opt:
        with pytest.raises(ValueError, match="does not say which step it is of; give step="):
            opt.load_full_state_dict(state)
        opt.load_full_state_dict(state, step=7)
        assert opt.last_step == 7
        assert same_state(opt.full_state_dict()["state"], state["state"])


def test_a_trainer_that_outlives_the_service_goes_on_from_what_it_holds(job):
    daemon = Daemon()
    try:
        daemon.start()
        model = trainers.make_small(False, torch.float32)
        with dmuon.Muon(model, job=job, address=daemon.address, verbose=False, **HYPERS) as opt:
            trainers.run_to(model, opt, 3)
            three = opt.full_state_dict()
            trainers.run_to(model, opt, 5)
            five = bits(whole_params(model))
            daemon.kill()
            daemon.start()
            with pytest.raises(DmuonError, match="DMUON_STATE_LOST"):
                opt.full_state_dict()
            opt.load_full_state_dict(three)
            assert opt.last_step == 3
            trainers.run_to(model, opt, 5)
            assert bits(whole_params(model)) == five
    finally:
        daemon.close()


# Of a matrix of 128 KiB: what the service holds, and the arena; what a copy takes.
JOB_KIB, COPY_KIB = 1280, 256


@pytest.mark.parametrize("copies", [0, 1])
def test_a_copy_takes_memory_until_it_is_read(job, copies):
    limit = (JOB_KIB + copies * COPY_KIB + COPY_KIB // 2) / 2**20
    daemon = Daemon("--memory-limit", f"{limit:.9f}")
    try:
        daemon.start()
        bag = trainers.Bag({"w": torch.ones(256, 128)}, "plain")
        with dmuon.Muon(bag, job=job, address=daemon.address, verbose=False, rules=[dmuon.Rule("muon")]) as opt:
            for step in range(3):
                bag.feed({"w": torch.full((256, 128), float(step))})
                opt.step()
                if copies == 0:
                    with pytest.raises(DmuonError, match="DMUON_LIMIT: .*a copy of the state"):
                        opt.full_state_dict()
                else:
                    opt.load_full_state_dict(opt.full_state_dict())
    finally:
        daemon.close()
