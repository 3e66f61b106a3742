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
from dmuon_client.qk_clip import QKClip
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
PRECISIONS = {"fp32": _abi.DMUON_PRECISION_FP32, "bf16": _abi.DMUON_PRECISION_BF16, "auto": _abi.DMUON_PRECISION_AUTO}
AUTOTUNE = {None: _abi.DMUON_AUTOTUNE_DEFAULT, "off": _abi.DMUON_AUTOTUNE_OFF, "cached": _abi.DMUON_AUTOTUNE_CACHED,
            "on": _abi.DMUON_AUTOTUNE_ON}
REPLICATION = {"none": _abi.DMUON_REPLICATION_NONE, "async": _abi.DMUON_REPLICATION_ASYNC,
               "sync": _abi.DMUON_REPLICATION_SYNC}
RANK_SCHEDULES = {"cosine": _abi.DMUON_RANK_COSINE, "linear": _abi.DMUON_RANK_LINEAR}
RESCALES = {"keep_norm": _abi.DMUON_RESCALE_KEEP_NORM, "rms": _abi.DMUON_RESCALE_RMS}
MAX_POLYNOMIALS = 20
MISSING = {
    "error": _abi.DMUON_MISSING_ERROR,
    "skip": _abi.DMUON_MISSING_SKIP,
    "zero": _abi.DMUON_MISSING_ZERO,
}


@dataclasses.dataclass(frozen=True)
class Variant:
    """An optimizer of the family, and the published defaults of what may change from step to step; those of its
    stages are the service's. Sources: kernels/README.md."""

    code: int
    lr: float = 0.02
    weight_decay: float = 0.0
    beta2: float | None = None  # None: it has no second moment
    momentum: float = 0.95
    momentum_form: str = "ema"


VARIANTS = {
    "muon": Variant(_abi.DMUON_VARIANT_MUON),
    "normuon": Variant(_abi.DMUON_VARIANT_NORMUON, beta2=0.95),
    "adamuon": Variant(_abi.DMUON_VARIANT_ADAMUON, weight_decay=0.01, beta2=0.95),
    "muon2": Variant(_abi.DMUON_VARIANT_MUON2, lr=0.01, weight_decay=0.01, beta2=0.95, momentum_form="accumulate"),
    "muon2_factored": Variant(_abi.DMUON_VARIANT_MUON2_FACTORED, lr=0.01, weight_decay=0.01, beta2=0.95,
                              momentum_form="accumulate"),
    "mona": Variant(_abi.DMUON_VARIANT_MONA, momentum_form="accumulate"),
    "dion2": Variant(_abi.DMUON_VARIANT_DION2, lr=0.01, weight_decay=0.01, momentum_form="accumulate"),
    "numuon": Variant(_abi.DMUON_VARIANT_NUMUON, weight_decay=0.1),
}


def check_number(what: str, value: Any, low: float, high: float = math.inf) -> None:
    """ValueError naming `what` unless `value` is finite and in [low, high)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value < high:
        raise ValueError(f"{what} is {value!r}; it must be a number in [{low}, {high})")


def _check_whole(what: str, value: Any, high: int = 2**62) -> None:
    check_number(what, value, 1, high)
    if not isinstance(value, int):
        raise ValueError(f"{what} is {value!r}; it must be a whole number")


def _check_word(what: str, value: str, table: Mapping[str, Any]) -> None:
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

    # Which optimizer of the family; None below is its default.
    variant: str = "muon"

    # Behaviour: may change during a run through param_groups.
    lr: float | None = None
    weight_decay: float | None = None  # decoupled: W *= 1 - lr * weight_decay
    momentum: float | None = None  # of "dion2" the decay of the lines that moved
    beta2: float | None = None  # of the second moment
    adamw: AdamW | Mapping[str, Any] = dataclasses.field(default_factory=AdamW)

    # Behaviour: fixed for a run.
    nesterov: bool | None = None
    momentum_form: str | None = None  # "ema" as torch.optim.Muon; "accumulate" as Moonlight
    # "jordan", "you", "polar_express", or 1 to 20 triples (a, b, c): iteration i takes singular values s to
    # a*s + b*s^3 + c*s^5, the last one repeats. Refused where a singular value in (0, 1.004] leaves [-2, 2].
    coefficients: str | Sequence[Sequence[float]] | None = None
    iterations: int | None = None  # Newton-Schulz steps, 1..20; each costs as much as the one before
    eps_mode: str | None = None  # norm of the input: "none" |X|, "add" |X| + ns_eps, "clamp" max
    ns_eps: float | None = None
    scale: str | None = None  # "match_rms_adamw" lets one lr serve both optimizers
    # Of Newton-Schulz's operands: "bf16" is up to twice as fast, and errs by 1e-2 instead of 1e-5; "auto" takes for
    # each shape what was measured as the faster one.
    precision: str = "fp32"
    # Measures how long each shape takes before a job is planned: "cached" once on a kind of machine, "on" each time,
    # "off" plans by operation counts, so that no measurement decides how results are rounded. None: $DMUON_AUTOTUNE,
    # else "cached".
    autotune: str | None = None
    cautious: bool = False  # weight decay only where the update shrinks the weight; of AdamW's tensors too
    second_moment_eps: float | None = None  # added to the root of the second moment
    sign: bool | None = None  # orthogonalize the sign of the momentum ("adamuon")
    selected: float | None = None  # share of rows or columns, whichever are fewer, that move ("dion2")
    slow_beta: float | None = None  # of the slow mean ("mona")
    acceleration: float | None = None  # -1 / (2 * (1 - slow_beta)) by default ("mona")
    rescale: str | None = None  # after a second moment of the update: "keep_norm" or "rms" ("normuon", "adamuon")
    rms: float | None = None  # of rescale="rms"
    rank_start: float | None = None  # share of singular directions that move, in (0, 1]; 0.25 by default ("numuon")
    rank_end: float | None = None  # what it becomes between a tenth and eight tenths of rank_steps updates
    rank_steps: int | None = None  # None: rank_start for the whole run
    rank_schedule: str | None = None  # "cosine" (default) or "linear"
    max_grad_norm: float | None = None  # over all tensors and workers, before any momentum
    missing_gradient: str = "error"  # "skip" keeps the tensor as it is, "zero" counts zeros
    rules: Sequence[Rule] = ()  # first match wins; see routing
    min_dim: int = 2  # matrices with a smaller side go to adamw, unless a rule names them
    qk_clip: Sequence[QKClip] = ()  # attentions whose logits are kept below a threshold; step() needs qk_max
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

    # Checkpoints that the service makes by itself, named step-000000000123, beside those of save().
    checkpoint_every_steps: int | None = None
    checkpoint_every_seconds: float | None = None  # after the first step that ends so long after the last one
    checkpoint_keep: int = 3  # how many of these stay; those of save() always do

    # Copies of each node's state in the memory of another node, so that a node that is lost costs a pause and not the
    # run: "sync" never undoes a step, "async" costs less time a step and may undo one. A copy takes four times a node's
    # state. Needs workers on two nodes at least.
    replication: str = "none"

    # Where the service is, and how long to wait for it.
    job: str | None = None
    address: str | None = None
    timeout: float = 120.0  # seconds of a wait; above the daemon's step timeout, whose error says more
    connect_timeout: float = 10.0  # longer rides out a daemon that is starting
    verbose: bool = True  # rank 0 prints routes and job id once

    def __post_init__(self) -> None:
        if isinstance(self.adamw, Mapping):
            self.adamw = AdamW(**self.adamw)
        if isinstance(self.variant, str) and (variant := VARIANTS.get(self.variant)):
            if variant.beta2 is None and self.beta2 is not None:
                raise ValueError(f"beta2 means nothing to variant {self.variant!r}, which has no second moment")
            for field in ("lr", "weight_decay", "momentum", "beta2"):
                if getattr(self, field) is None:
                    setattr(self, field, getattr(variant, field))

    def group(self, algorithm: str) -> dict[str, int | float]:
        """Fields of dmuon_group for "muon", what is orthogonalized, or "adamw"."""
        decay = _abi.DMUON_DECAY_CAUTIOUS if self.cautious else _abi.DMUON_DECAY_DECOUPLED
        fields = _abi.DMUON_GROUP_INIT | {"weight_decay": decay, "adamw_eps": self.adamw.eps}
        if algorithm == "adamw":
            return fields | {"algorithm": _abi.DMUON_ADAMW}
        of_set = isinstance(self.coefficients, str) or self.coefficients is None
        chosen = {
            "momentum_form": MOMENTUM_FORMS.get(self.momentum_form),
            **({"coefficients": COEFFICIENTS.get(self.coefficients)} if of_set else {"polynomials": self.coefficients}),
            "eps_mode": EPS_MODES.get(self.eps_mode), "scale": SCALES.get(self.scale),
            "rescale": RESCALES.get(self.rescale), "newton_schulz_eps": self.ns_eps,
            "rank_schedule": RANK_SCHEDULES.get(self.rank_schedule),
            **{name: getattr(self, name) for name in ("nesterov", "iterations", "second_moment_eps", "sign", "selected",
                                                      "slow_beta", "acceleration", "rms", "rank_start", "rank_end",
                                                      "rank_steps")}}
        return fields | {"variant": VARIANTS[self.variant].code, "precision": PRECISIONS[self.precision]} | {
            name: value for name, value in chosen.items() if value is not None}

    def optimizer(self, algorithm: str) -> str:
        """What the service calls "muon" or "adamw": equal names, equal meaning of the state."""
        if algorithm == "adamw":
            return algorithm
        return f"{self.variant}({self.momentum_form or VARIANTS[self.variant].momentum_form})"

    def validate(self) -> None:
        _check_word("variant", self.variant, VARIANTS)
        check_number("lr", self.lr, 0.0)
        check_number("weight_decay", self.weight_decay, 0.0)
        check_number("momentum", self.momentum, 0.0, 1.0)
        self.adamw.validate()
        _check_word("missing_gradient", self.missing_gradient, MISSING)
        _check_word("precision", self.precision, PRECISIONS)
        _check_word("autotune", self.autotune, AUTOTUNE)
        _check_word("replication", self.replication, REPLICATION)
        _check_whole("min_dim", self.min_dim)
        self._validate_stages()
        check_number("timeout", self.timeout, 0.001, 2_000_000)
        check_number("connect_timeout", self.connect_timeout, 0.001, 2_000_000)
        if self.max_grad_norm is not None:
            check_number("max_grad_norm", self.max_grad_norm, 0.0)
            if self.max_grad_norm == 0:
                raise ValueError("max_grad_norm is 0; it must be above 0, or None for no clipping")
        if self.backward_passes_per_step is not None:
            _check_whole("backward_passes_per_step", self.backward_passes_per_step)
        if self.overlap and self.sync:
            raise ValueError("overlap needs sync=False: a step with sync=True waits for all parameters itself")
        self._validate_checkpoints()
        self._validate_rules()

    def _validate_checkpoints(self) -> None:
        if self.checkpoint_every_steps is not None:
            _check_whole("checkpoint_every_steps", self.checkpoint_every_steps, 2**32)
        if self.checkpoint_every_seconds is not None:
            check_number("checkpoint_every_seconds", self.checkpoint_every_seconds, 0.0, 2**31)
            if self.checkpoint_every_seconds == 0:
                raise ValueError("checkpoint_every_seconds is 0; it must be above 0, or None for never")
        _check_whole("checkpoint_keep", self.checkpoint_keep, 1001)

    def _validate_stages(self) -> None:
        for what, table in (("momentum_form", MOMENTUM_FORMS), ("eps_mode", EPS_MODES), ("scale", SCALES),
                            ("rescale", RESCALES), ("rank_schedule", RANK_SCHEDULES)):
            if getattr(self, what) is not None:
                _check_word(what, getattr(self, what), table)
        bounds = {"beta2": (0.0, 1.0), "iterations": (1, 21), "ns_eps": (0.0, math.inf), "slow_beta": (0.0, 1.0),
                  "second_moment_eps": (0.0, math.inf), "rms": (0.0, math.inf), "acceleration": (-math.inf, math.inf)}
        for what, (low, high) in bounds.items():
            if getattr(self, what) is not None:
                check_number(what, getattr(self, what), low, high)
        for what in ("selected", "rank_start", "rank_end"):
            value = getattr(self, what)
            if value is not None and not (isinstance(value, float | int) and 0.0 < value <= 1.0):
                raise ValueError(f"{what} is {value!r}; it must be a number in (0.0, 1.0]")
        if self.rank_steps is not None:
            _check_whole("rank_steps", self.rank_steps)
        self._validate_coefficients()

    def _validate_coefficients(self) -> None:
        given = self.coefficients
        if isinstance(given, str):
            _check_word("coefficients", given, COEFFICIENTS)
        elif given is not None:
            if not isinstance(given, Sequence) or not 1 <= len(given) <= MAX_POLYNOMIALS:
                raise ValueError(f"coefficients is {given!r}; it must be a word or 1 to {MAX_POLYNOMIALS} triples")
            for i, triple in enumerate(given):
                if not isinstance(triple, Sequence) or len(triple) != 3:
                    raise ValueError(f"coefficients[{i}] is {triple!r}; it must be three numbers (a, b, c)")
                for value in triple:
                    check_number(f"coefficients[{i}]", value, -math.inf)

    def _validate_rules(self) -> None:
        for clip in self.qk_clip:
            clip.validate()
        for rule in self.rules:
            rule.validate()
            for what, value, high in rule.overrides_to_check():
                check_number(f"{what} of {rule}", value, 0.0, high)


Hyper = tuple[float, float, float, float]  # lr, weight decay, momentum or beta1, beta2


def hyper_of(group: dict[str, Any]) -> Hyper:
    first, second = group["betas"] if group["algorithm"] == "adamw" else (group["momentum"], group.get("beta2", 0.0))
    return float(group["lr"]), float(group["weight_decay"]), float(first), float(second)


def check_hyper(group_name: str, hyper: Hyper) -> None:
    """ValueError naming the group; a bad value must not reach the other workers' step."""
    lr, weight_decay, first, second = hyper
    where = f"of group {group_name!r}"
    check_number(f"lr {where}", lr, 0.0)
    check_number(f"weight_decay {where}", weight_decay, 0.0)
    check_number(f"momentum {where}", first, 0.0, 1.0)
    check_number(f"beta2 {where}", second, 0.0, 1.0)
