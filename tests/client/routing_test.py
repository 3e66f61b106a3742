# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""Routing is decided by names, modules and global shapes, and shown. No daemon needed."""

import pytest
import torch
from dmuon_client import _abi
from dmuon_client import RoutingError, RowBlocks, Rule, route_model
from dmuon_client.routing import describe, elongated
from torch import nn


class Transformer(nn.Module):
    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.blocks = nn.ModuleList(nn.ModuleDict({
            "norm": nn.LayerNorm(16), "up": nn.Linear(16, 64), "output": nn.Linear(64, 16, bias=False),
        }) for _ in range(2))
        self.lm_head = nn.Linear(16, 32, bias=False)
        if tied:
            self.lm_head.weight = self.embed.weight


def routes_of(model: nn.Module, *rules: Rule) -> dict[str, str]:
    return {route.name: route.route for route in route_model(model, rules)}


def test_hidden_matrices_go_to_muon_and_the_rest_to_adamw():
    assert routes_of(Transformer()) == {
        "embed.weight": "adamw",
        "blocks.0.norm.weight": "adamw", "blocks.0.norm.bias": "adamw",
        "blocks.0.up.weight": "muon", "blocks.0.up.bias": "adamw", "blocks.0.output.weight": "muon",
        "blocks.1.norm.weight": "adamw", "blocks.1.norm.bias": "adamw",
        "blocks.1.up.weight": "muon", "blocks.1.up.bias": "adamw", "blocks.1.output.weight": "muon",
        "lm_head.weight": "adamw",
    }


@pytest.mark.parametrize("name", ["head", "output", "classifier", "lm_head"])
def test_output_heads_go_to_adamw(name):
    model = nn.ModuleDict({"fc": nn.Linear(4, 4, bias=False), name: nn.Linear(4, 9, bias=False)})
    assert routes_of(model) == {"fc.weight": "muon", f"{name}.weight": "adamw"}


def test_tied_weight_appears_once_with_both_names_on_the_strictest_route():
    # cases row 75
    route = route_model(Transformer(tied=True))[0]
    assert (route.names, route.route) == (["embed.weight", "lm_head.weight"], "adamw")

    first_hidden = nn.ModuleDict({"fc": nn.Linear(16, 32, bias=False), "embed": nn.Embedding(32, 16)})
    first_hidden["embed"].weight = first_hidden["fc"].weight
    (route,) = route_model(first_hidden)
    assert (route.names, route.route) == (["fc.weight", "embed.weight"], "adamw")


def test_shared_module_keeps_one_route():
    layer = nn.Linear(4, 4, bias=False)
    (route,) = route_model(nn.ModuleDict({"a": layer, "b": layer}))
    assert route.names == ["a.weight", "b.weight"]


def test_first_rule_that_matches_wins_and_overrides_make_a_group():
    routes = route_model(Transformer(), [
        Rule("adamw", name="blocks.0.*", ndim=2, lr=0.1, group="first"),
        Rule("frozen", module=nn.Embedding),
        Rule("muon", name="lm_head.*", lr=0.5),
        Rule("adamw", name="*.up.*"),
    ])
    found = {r.name: (r.route, r.group, r.overrides) for r in routes}
    assert found["blocks.0.up.weight"] == ("adamw", "first", {"lr": 0.1})
    assert found["embed.weight"] == ("frozen", "frozen", {})
    assert found["lm_head.weight"] == ("muon", "muon.rule2", {"lr": 0.5})
    assert found["blocks.1.up.weight"] == ("adamw", "adamw", {})
    assert found["blocks.1.output.weight"] == ("muon", "muon", {})


def test_rule_by_size():
    model = nn.ModuleDict({"small": nn.Linear(2, 2, bias=False), "large": nn.Linear(9, 9, bias=False)})
    assert routes_of(model, Rule("adamw", max_size=4)) == {"small.weight": "adamw", "large.weight": "muon"}
    assert routes_of(model, Rule("adamw", min_size=81)) == {"small.weight": "muon", "large.weight": "adamw"}


def test_a_matrix_with_a_side_below_min_dim_goes_to_adamw_unless_a_rule_names_it():
    model = nn.ModuleDict({"gate": nn.Linear(16, 1, bias=False), "narrow": nn.Linear(3, 16, bias=False),
                           "kernel": nn.Conv2d(1, 1, (3, 3), bias=False), "fc": nn.Linear(16, 16, bias=False)})
    assert routes_of(model) == {"gate.weight": "adamw", "narrow.weight": "muon", "kernel.weight": "adamw", "fc.weight": "muon"}
    reasons = {r.name: r.reason for r in route_model(model, min_dim=4)}
    assert reasons["narrow.weight"] == "smaller side 3 below min_dim 4"
    assert "smaller side 3 below min_dim 4" in describe(route_model(model, min_dim=4))
    assert routes_of(model, Rule("muon", name="gate.*"))["gate.weight"] == "muon"
    assert [r.route for r in route_model(model, min_dim=1)] == ["muon"] * 4


def test_elongated_are_hidden_matrices_of_aspect_fifty_that_no_rule_names():
    model = nn.ModuleDict({"table": nn.Linear(4, 200, bias=False), "below": nn.Linear(4, 199, bias=False),
                           "wide": nn.Linear(600, 12, bias=False), "meant": nn.Linear(4, 400, bias=False)})
    found = elongated(route_model(model, [Rule("muon", name="meant.*")]))
    assert [r.name for r in found] == ["table.weight", "wide.weight"]


def test_three_dimensions_need_a_rule_and_the_error_names_them():
    model = nn.ModuleDict({"fc": nn.Linear(4, 4), "up": nn.ConvTranspose1d(4, 4, 3)})
    with pytest.raises(RoutingError, match=r"up\.weight \(4, 4, 3\).*view='experts'.*view='flatten'"):
        route_model(model)
    assert routes_of(model, Rule("adamw", name="up.weight"))["up.weight"] == "adamw"


def test_three_dimensions_need_a_view_on_the_way_to_muon():
    model = nn.ModuleDict({"up": nn.ConvTranspose1d(4, 4, 3)})
    for view in (None, RowBlocks([2, 2])):
        with pytest.raises(RoutingError, match=r"rule 0: up\.weight \(4, 4, 3\) may be a stack .* say view='experts'"):
            route_model(model, [Rule("muon", name="up.weight", view=view)])
    assert routes_of(model, Rule("muon", name="up.weight", view="flatten"))["up.weight"] == "muon"


@pytest.mark.parametrize("convolution", [nn.Conv1d, nn.Conv2d, nn.Conv3d])
def test_convolution_kernel_goes_to_muon_flattened(convolution):
    for rules in ([], [Rule("muon", name="*")]):
        (route,) = route_model(nn.Sequential(convolution(3, 8, 3, bias=False)), rules)
        assert (route.route, route.matrices.view) == ("muon", _abi.DMUON_VIEW_FLATTEN)


def test_one_dimension_cannot_be_forced_to_muon():
    with pytest.raises(RoutingError, match=r"rule 0 sends 0\.bias \(4,\) to muon"):
        route_model(nn.Sequential(nn.Linear(4, 4)), [Rule("muon", name="*.bias")])


def test_requires_grad_false_is_frozen_even_against_a_rule():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[0].weight.requires_grad_(False)
    assert routes_of(model, Rule("muon", name="*")) == {"0.weight": "frozen", "1.weight": "muon"}


def test_nothing_to_train_is_refused():
    with pytest.raises(RoutingError, match="all 2 parameters are frozen"):
        route_model(nn.Linear(4, 4).requires_grad_(False))


def test_wrapper_prefixes_are_not_part_of_a_name():
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model = nn.Sequential(checkpoint_wrapper(nn.Linear(4, 4, bias=False)))
    compiled = torch.compile(model)
    assert routes_of(compiled) == {"0.weight": "muon"}


def test_a_module_called_module_keeps_its_name():
    assert routes_of(nn.ModuleDict({"module": nn.Linear(4, 4, bias=False)})) == {"module.weight": "muon"}


@pytest.mark.parametrize(("rule", "complaint"), [
    (Rule("sgd"), "'muon', 'adamw', 'frozen'"),
    (Rule("frozen", lr=0.1), "frozen parameter has no group"),
    (Rule("adamw", momentum=0.9), "momentum belongs to muon"),
    (Rule("muon", betas=(0.9, 0.9)), "belong to adamw"),
    (Rule("adamw", view="experts"), "a view belongs to muon"),
    (Rule("muon", view="heads"), "view is 'heads'; it must be 'flatten', 'experts'"),
    (Rule("muon", view=[4, 4]), r"view is \[4, 4\]"),
])
def test_contradictory_rule_is_refused(rule, complaint):
    with pytest.raises(ValueError, match=complaint):
        rule.validate()


def test_a_view_that_decides_on_nothing_is_refused():
    rule = Rule("muon", name="blocks.*.qkv.*", view=RowBlocks([8, 8]))
    with pytest.raises(RoutingError, match="rule 1 says how matrices are seen, but it decides on no parameter"):
        route_model(Transformer(), [Rule("adamw", name="head"), rule])


def test_a_view_of_a_frozen_matrix_is_no_mistake():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[0].weight.requires_grad_(False)
    assert routes_of(model, Rule("muon", name="0.*", view=RowBlocks([2, 2])))["0.weight"] == "frozen"


def test_tied_names_must_agree_on_the_matrices():
    model = nn.ModuleDict({"a": nn.Linear(4, 4, bias=False), "b": nn.Linear(4, 4, bias=False)})
    model["b"].weight = model["a"].weight
    with pytest.raises(RoutingError, match=r"a\.weight and b\.weight are one tensor, which rules see in two ways"):
        route_model(model, [Rule("muon", name="a.*", view=RowBlocks([2, 2]))])


def test_table_says_how_many_matrices_a_tensor_holds():
    rule = Rule("muon", name="*.up.weight", view=RowBlocks([32, 32]))
    table = describe(route_model(Transformer(), [rule]))
    assert next(line for line in table.splitlines() if line.startswith("blocks.*.up.weight")).endswith("rule 0, 2 matrices")


def test_table_has_one_line_for_all_layers_and_shows_every_route():
    # cases rows 25 and 31
    table = describe(route_model(Transformer(tied=True)))
    up = next(line for line in table.splitlines() if line.startswith("blocks.*.up.weight"))
    assert up.split()[1:7] == ["64x16", "2", "2,048", "muon", "muon", "hidden"]
    assert "embed.weight = lm_head.weight" in table
