# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""Which optimizer a parameter goes to, decided by its name, its module and its *global* shape.

Never by a shard's shape: a sharded matrix is a matrix. What no rule covers is an error.
"""

import dataclasses
import fnmatch
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dmuon_client import views

ROUTES = ("muon", "adamw", "frozen")
# Of names for one parameter, the route of the strictest wins: a tied embedding is an embedding.
_STRICTNESS = {"muon": 0, "adamw": 1, "frozen": 2}
_WRAPPERS = {"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"}
_HIDDEN = "hidden matrix"
_ELONGATED = 50
_HEADS = {"lm_head", "head", "output", "output_layer", "classifier", "unembed", "embed_out", "score"}
_EMBEDDINGS = {"wte", "wpe", "embedding", "embeddings", "embed", "tok_embeddings", "embed_tokens",
               "pos_embed", "pos_embedding", "position_embedding", "position_embeddings"}


@dataclasses.dataclass(frozen=True)
class Rule:
    """Sends parameters to `route`. Every condition given must hold; the first rule that matches wins.

    A rule with a hyper-parameter or a `group` makes a parameter group of its own. One with a `view` must match.
    """

    route: str  # "muon", "adamw" or "frozen"
    name: str | None = None  # glob over the whole name: "blocks.*.attn.*"
    ndim: int | None = None
    min_size: int | None = None  # elements of the whole tensor
    max_size: int | None = None
    module: type | tuple[type, ...] | None = None  # of the module that holds it
    group: str | None = None
    lr: float | None = None
    weight_decay: float | None = None
    momentum: float | None = None  # of muon
    betas: tuple[float, float] | None = None  # of adamw
    view: views.View | None = None  # of muon: which matrices the tensor holds; see views

    def validate(self) -> None:
        if self.route not in ROUTES:
            raise ValueError(f"route of {self} must be one of {', '.join(map(repr, ROUTES))}")
        if self.route == "frozen" and self.makes_group():
            raise ValueError(f"{self}: a frozen parameter has no group and no hyper-parameters")
        if self.momentum is not None and self.route != "muon":
            raise ValueError(f"{self}: momentum belongs to muon; adamw has betas")
        if self.view is not None:
            if self.route != "muon":
                raise ValueError(f"{self}: a view belongs to muon; {self.route} does not look at matrices")
            views.check(self.view)
        if self.betas is not None and (self.route != "adamw" or len(self.betas) != 2):
            raise ValueError(f"{self}: betas are two numbers and belong to adamw")

    def overrides(self) -> dict[str, Any]:
        values = {key: getattr(self, key) for key in ("lr", "weight_decay", "momentum", "betas")}
        return {key: value for key, value in values.items() if value is not None}

    def overrides_to_check(self) -> list[tuple[str, float, float]]:
        checks = []
        for key, value in self.overrides().items():
            bound = 1.0 if key in ("momentum", "betas") else math.inf
            checks += [(key, v, bound) for v in (value if key == "betas" else (value,))]
        return checks

    def makes_group(self) -> bool:
        return self.group is not None or bool(self.overrides())

    def matches(self, name: str, shape: Sequence[int], module: nn.Module) -> bool:
        size = math.prod(shape)
        return (
            (self.name is None or fnmatch.fnmatchcase(name, self.name))
            and (self.ndim is None or len(shape) == self.ndim)
            and (self.min_size is None or size >= self.min_size)
            and (self.max_size is None or size <= self.max_size)
            and (self.module is None or isinstance(module, self.module))
        )


@dataclasses.dataclass
class Route:
    """One parameter and where it goes. `names` are all its names; the first is what the service sees."""

    param: nn.Parameter
    names: list[str]
    route: str
    group: str
    reason: str
    overrides: dict[str, Any] = dataclasses.field(default_factory=dict)
    matrices: views.Matrices = views.Matrices()  # of muon

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.param.shape)


class RoutingError(ValueError):
    """No rule says where a parameter goes, or the model cannot be routed; the message names it."""


def route_model(model: nn.Module, rules: Sequence[Rule] = (), min_dim: int = 2) -> list[Route]:
    """Every parameter of `model` once, in registration order, tied names together. What no rule names goes to
    adamw when its smaller side, as a flattened matrix, is below `min_dim`.

    RoutingError for FSDP1, for a parameter that no rule covers or whose view does not fit it, for a view that no
    parameter gets, and for a model without anything to train.
    """
    _refuse_flat(model)
    found: dict[int, Route] = {}
    unrouted: list[str] = []
    unused = {i for i, rule in enumerate(rules) if rule.view is not None}
    for name, param, module in named_parameters(model):
        match = next((i for i, rule in enumerate(rules) if rule.matches(name, param.shape, module)), None)
        unused.discard(match)
        route = _decide(name, param, module, rules, match, min_dim)
        if route is None:
            unrouted.append(f"{name} {tuple(param.shape)}")
            continue
        _merge(found, route)
    if unrouted:
        raise RoutingError(
            f"no rule says where to send {', '.join(unrouted)}: a tensor of three or more dimensions may be "
            "a stack of matrices or a kernel. Add a rule such as dmuon.Rule('muon', name=..., view='experts'), "
            "dmuon.Rule('muon', name=..., view='flatten') (first dimension against the rest) or "
            "dmuon.Rule('adamw', name=...)"
        )
    for i in unused:
        raise RoutingError(f"rule {i} says how matrices are seen, but it decides on no parameter: {rules[i]}")
    routes = list(found.values())
    if all(r.route == "frozen" for r in routes):
        raise RoutingError(f"nothing to train: all {len(routes)} parameters are frozen")
    return routes


def named_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter, nn.Module]]:
    """(name, parameter, holding module), every name of a tied parameter, wrappers' prefixes removed."""
    modules = list(model.named_modules(remove_duplicate=False))
    replicated = {path for path, m in modules if isinstance(m, DistributedDataParallel)}
    for path, module in modules:
        prefix = _clean(path, replicated)
        for leaf, param in module.named_parameters(recurse=False, remove_duplicate=False):
            yield (f"{prefix}.{leaf}" if prefix else leaf), param, module


def _clean(path: str, replicated: set[str]) -> str:
    parts = path.split(".") if path else []
    kept = []
    for i, part in enumerate(parts):
        inside_ddp = part == "module" and ".".join(parts[:i]) in replicated
        if part not in _WRAPPERS and not inside_ddp:
            kept.append(part)
    return ".".join(kept)


def _refuse_flat(model: nn.Module) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    for path, module in model.named_modules():
        if isinstance(module, FullyShardedDataParallel):
            raise RoutingError(
                f"module {path or '(root)'!r} is FullyShardedDataParallel (FSDP1), which flattens its "
                "parameters so that no matrix is left; use torch.distributed.fsdp.fully_shard"
            )


def _decide(name: str, param: nn.Parameter, module: nn.Module, rules: Sequence[Rule],
            match: int | None, min_dim: int) -> Route | None:
    """`match`: the rule that does. None when nothing covers the parameter."""
    shape = tuple(param.shape)
    if not param.requires_grad:
        return Route(param, [name], "frozen", "frozen", "requires_grad is False")
    if param.numel() == 0:
        return Route(param, [name], "frozen", "frozen", "no elements")
    rule = None if match is None else rules[match]
    if rule is None:
        default = _default(name, shape, module, min_dim)
        if default is None:
            return None
        route = Route(param, [name], default[0], *default)
    else:
        group = (rule.group or f"{rule.route}.rule{match}") if rule.makes_group() else rule.route
        route = Route(param, [name], rule.route, group, f"rule {match}", rule.overrides())
    if route.route == "muon":
        _see(route, module, rule)
    return route


def _see(route: Route, module: nn.Module, rule: Rule | None) -> None:
    """Sets the matrices of a route to muon."""
    if len(route.shape) < 2:
        raise RoutingError(f"{route.reason} sends {route.name} {route.shape} to muon, which needs 2 dimensions")
    try:
        route.matrices = views.matrices_of(route.name, route.shape, module, rule.view if rule else None)
    except ValueError as error:
        raise RoutingError(f"{route.reason}: {error}") from None
    if (count := route.matrices.count(route.shape)) > 1:
        route.reason += f", {count} matrices"


def _default(name: str, shape: tuple[int, ...], module: nn.Module, min_dim: int) -> tuple[str, str] | None:
    """(route, reason), or None."""
    *path, leaf = name.split(".")
    holder = path[-1] if path else ""
    in_a_layer = any(part.isdigit() for part in path)
    if len(shape) < 2:
        return "adamw", f"{len(shape)}-D"
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        return "adamw", "embedding"
    if len(shape) == 2 and not in_a_layer and {holder, leaf} & _EMBEDDINGS:
        return "adamw", "embedding by name"
    if "Norm" in type(module).__name__:
        return "adamw", "norm"
    if not in_a_layer and holder in _HEADS:
        return "adamw", "output head by name"
    if len(shape) != 2 and not isinstance(module, views.CONVOLUTIONS):
        return None
    smaller = min(_flattened(shape))
    if smaller < min_dim:
        return "adamw", f"smaller side {smaller} below min_dim {min_dim}"
    return "muon", _HIDDEN if len(shape) == 2 else "kernel, flattened"


def _flattened(shape: Sequence[int]) -> tuple[int, int]:
    return shape[0], math.prod(shape[1:])


def elongated(routes: Sequence[Route]) -> list[Route]:
    """Matrices that no rule names and that go to muon although one side is 50 or more times the other: an
    embedding or a head by another name, as a rule."""
    def aspect(route: Route) -> float:
        smaller, larger = sorted(_flattened(route.shape))
        return larger / smaller

    return [r for r in routes if r.reason == _HIDDEN and aspect(r) >= _ELONGATED]


def _merge(found: dict[int, Route], route: Route) -> None:
    known = found.setdefault(id(route.param), route)
    if route.name in known.names:
        return
    if (known.route, route.route) == ("muon", "muon") and known.matrices != route.matrices:
        raise RoutingError(f"{known.name} and {route.name} are one tensor, which rules see in two ways: "
                           f"{known.matrices} and {route.matrices}")
    known.names.append(route.name)
    if _STRICTNESS[route.route] > _STRICTNESS[known.route]:
        found[id(route.param)] = dataclasses.replace(route, names=known.names)


def describe(routes: Sequence[Route]) -> str:
    """The routes as a table, a line for all layers of one kind."""
    lines: dict[tuple, list[int]] = {}
    for r in routes:
        names = " = ".join(re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", name) for name in r.names)
        shape = "x".join(map(str, r.shape)) or "scalar"
        entry = lines.setdefault((names, shape, r.route, r.group, r.reason), [0, 0])
        entry[0] += 1
        entry[1] += r.param.numel()
    rows = [("parameter", "shape", "count", "elements", "optimizer", "group", "why")]
    rows += [(names, shape, str(n), f"{size:,}", route, group, why)
             for (names, shape, route, group, why), (n, size) in lines.items()]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    numeric = {2, 3}
    table = ["  ".join(cell.rjust(w) if i in numeric else cell.ljust(w)
                       for i, (cell, w) in enumerate(zip(row, widths, strict=True))).rstrip()
             for row in rows]
    return "\n".join(table)
