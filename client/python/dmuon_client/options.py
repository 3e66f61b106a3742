# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""What a user may choose, in one place and checked in one place."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from dmuon_client import _abi
from dmuon_client.routing import Rule

MOMENTUM_FORMS = {"ema": _abi.DMUON_EMA, "accumulate": _abi.DMUON_ACCUMULATE}
COEFFICIENTS = {
    "jordan": _abi.DMUON_JORDAN,
    "you": _abi.DMUON_YOU,
    "polar_express": _abi.DMUON_POLAR_EXPRESS,
}
EPS_MODES = {"none": _abi.DMUON_EPS_NONE, "add": _abi.DMUON_EPS_ADD, "clamp": _abi.DMUON_EPS_CLAMP}
SCALES = {
    "none": _abi.DMUON_SCALE_NONE,
    "original": _abi.DMUON_SCALE_ORIGINAL,
    "match_rms_adamw": _abi.DMUON_SCALE_MATCH_RMS_ADAMW,
    "spectral": _abi.DMUON_SCALE_SPECTRAL,
}
MISSING = {
    "error": _abi.DMUON_MISSING_ERROR,
    "skip": _abi.DMUON_MISSING_SKIP,
    "zero": _abi.DMUON_MISSING_ZERO,
}


def check_number(what: str, value: Any, low: float, high: float = math.inf) -> None:
    """ValueError naming `what` unless `value` is finite and in [low, high)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value < high:
        raise ValueError(f"{what} is {value!r}; it must be a number in [{low}, {high})")


def _check_word(what: str, value: str, table: Mapping[str, int]) -> None:
    if value not in table:
        raise ValueError(f"{what} is {value!r}; it must be one of {', '.join(map(repr, table))}")


@dataclasses.dataclass
class AdamW:
    """Hyper-parameters of what Newton-Schulz does not touch: embeddings, heads, norms, biases."""

    lr: float = 3e-4
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.0  # not inherited from Muon's

    def validate(self) -> None:
        check_number("adamw lr", self.lr, 0.0)
        check_number("adamw weight_decay", self.weight_decay, 0.0)
        if len(self.betas) != 2:
            raise ValueError(f"adamw betas is {self.betas!r}; it must be two numbers")
        for beta in self.betas:
            check_number("adamw beta", beta, 0.0, 1.0)
        if self.eps == 0.0:
            raise ValueError("adamw eps is 0; it must be above 0")
        check_number("adamw eps", self.eps, 0.0)


@dataclasses.dataclass
class Options:
    """Keyword arguments of `Muon`. `validate` says what is wrong with them."""

    # Behaviour: may change during a run through param_groups.
    lr: float = 0.02
    weight_decay: float = 0.0  # decoupled: W *= 1 - lr * weight_decay
    momentum: float = 0.95
    adamw: AdamW | Mapping[str, Any] = dataclasses.field(default_factory=AdamW)

    # Behaviour: fixed for a run.
    nesterov: bool = True
    momentum_form: str = "ema"  # as torch.optim.Muon; "accumulate" as Moonlight
    coefficients: str = "jordan"
    iterations: int = 5  # Newton-Schulz steps, 1..20; each costs as much as the one before
    eps_mode: str = "none"  # norm of the input: "none" |X|, "add" |X| + ns_eps, "clamp" max
    ns_eps: float = 1e-7
    scale: str = "original"  # "match_rms_adamw" lets one lr serve both optimizers
    max_grad_norm: float | None = None  # over all tensors and workers, before any momentum
    missing_gradient: str = "error"  # "skip" keeps the tensor as it is, "zero" counts zeros
    rules: Sequence[Rule] = ()  # first match wins; see routing
    row_blocks: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)
    reduced: bool | None = None  # of plain parameters without DDP in a job of many workers
    mesh: DeviceMesh | None = None  # all workers, where fully_shard was given a part of them (HSDP)

    # False: step() returns when the gradients are handed over, and whoever needs the new parameters
    # next waits for them: the forward of a module for its own, a state_dict or the next step() for all.
    sync: bool = True
    # With sync=False, and without fully_shard, which has groups of its own: modules whose parameters are
    # used in their own forward only. Each waits for its own parameters; the first forward for all others.
    overlap: Sequence[nn.Module] = ()

    # How many backward passes make a step: each gradient goes to the service during the last of them, as
    # soon as it is complete, instead of in step(). None: in step().
    backward_passes_per_step: int | None = None

    # Where the service is, and how long to wait for it.
    job: str | None = None
    address: str | None = None
    timeout: float = 120.0  # seconds of a wait; above the daemon's step timeout, whose error says more
    connect_timeout: float = 10.0  # longer rides out a daemon that is starting
    verbose: bool = True  # rank 0 prints routes and job id once

    def __post_init__(self) -> None:
        if isinstance(self.adamw, Mapping):
            self.adamw = AdamW(**self.adamw)

    def validate(self) -> None:
        check_number("lr", self.lr, 0.0)
        check_number("weight_decay", self.weight_decay, 0.0)
        check_number("momentum", self.momentum, 0.0, 1.0)
        self.adamw.validate()
        _check_word("momentum_form", self.momentum_form, MOMENTUM_FORMS)
        _check_word("coefficients", self.coefficients, COEFFICIENTS)
        _check_word("eps_mode", self.eps_mode, EPS_MODES)
        _check_word("scale", self.scale, SCALES)
        _check_word("missing_gradient", self.missing_gradient, MISSING)
        check_number("iterations", self.iterations, 1, 21)
        check_number("ns_eps", self.ns_eps, 0.0)
        check_number("timeout", self.timeout, 0.001, 2_000_000)
        check_number("connect_timeout", self.connect_timeout, 0.001, 2_000_000)
        if self.max_grad_norm is not None:
            check_number("max_grad_norm", self.max_grad_norm, 0.0)
            if self.max_grad_norm == 0:
                raise ValueError("max_grad_norm is 0; it must be above 0, or None for no clipping")
        if self.backward_passes_per_step is not None:
            check_number("backward_passes_per_step", self.backward_passes_per_step, 1)
            if not isinstance(self.backward_passes_per_step, int):
                raise ValueError(f"backward_passes_per_step is {self.backward_passes_per_step!r}; it must be a whole number")
        if self.overlap and self.sync:
            raise ValueError("overlap needs sync=False: a step with sync=True waits for all parameters itself")
        for rule in self.rules:
            rule.validate()
            for what, value, high in rule.overrides_to_check():
                check_number(f"{what} of {rule}", value, 0.0, high)
