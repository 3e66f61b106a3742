# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""Every bad option is refused by a message that names it, before anything is connected."""

import math

import pytest
from dmuon_client import Options, Rule


def test_defaults_are_valid():
    Options().validate()


@pytest.mark.parametrize(("keywords", "complaint"), [
    ({"lr": -1.0}, "lr is -1.0"),
    ({"lr": math.nan}, "lr is nan"),
    ({"lr": math.inf}, "lr is inf"),
    ({"weight_decay": "0.1"}, "weight_decay is '0.1'"),
    ({"momentum": 1.0}, "momentum is 1.0"),
    ({"iterations": 0}, "iterations is 0"),
    ({"checkpoint_every_steps": 0}, "checkpoint_every_steps is 0"),
    ({"checkpoint_every_steps": 2**32}, "checkpoint_every_steps is 4294967296"),
    ({"checkpoint_every_steps": 2.5}, "checkpoint_every_steps is 2.5; it must be a whole number"),
    ({"checkpoint_every_seconds": 0}, "checkpoint_every_seconds is 0; it must be above 0, or None for never"),
    ({"checkpoint_every_seconds": math.inf}, "checkpoint_every_seconds is inf"),
    ({"checkpoint_keep": 0}, "checkpoint_keep is 0"),
    ({"checkpoint_keep": 1001}, "checkpoint_keep is 1001"),
    ({"iterations": 21}, "iterations is 21"),
    ({"scale": "spectrum"}, "scale is 'spectrum'; it must be one of 'none', 'original'"),
    ({"coefficients": "quintic"}, "coefficients is 'quintic'"),
    ({"coefficients": []}, r"coefficients is \[\]; it must be a word or 1 to 20 triples"),
    ({"coefficients": [(2, -1.5, 0.5)] * 21}, "it must be a word or 1 to 20 triples"),
    ({"coefficients": [(2, -1.5, 0.5), (1, 2)]}, r"coefficients\[1\] is \(1, 2\); it must be three numbers"),
    ({"coefficients": [(2, math.nan, 0.5)]}, r"coefficients\[0\] is nan"),
    ({"rank_start": 0.0, "variant": "numuon"}, "rank_start is 0.0"),
    ({"rank_end": 1.5, "variant": "numuon"}, "rank_end is 1.5"),
    ({"rank_steps": 0, "variant": "numuon"}, "rank_steps is 0"),
    ({"rank_steps": 10.5, "variant": "numuon"}, "rank_steps is 10.5; it must be a whole number"),
    ({"rank_schedule": "step", "variant": "numuon"}, "rank_schedule is 'step'"),
    ({"momentum_form": "lerp"}, "momentum_form is 'lerp'"),
    ({"eps_mode": "max"}, "eps_mode is 'max'"),
    ({"variant": "muonium"}, "variant is 'muonium'; it must be one of 'muon', 'normuon'"),
    ({"beta2": 1.0, "variant": "normuon"}, "beta2 is 1.0"),
    ({"selected": 0.0, "variant": "dion2"}, "selected is 0.0"),
    ({"slow_beta": 1.0, "variant": "mona"}, "slow_beta is 1.0"),
    ({"rescale": "norm", "variant": "normuon"}, "rescale is 'norm'"),
    ({"beta2": 0.95}, "beta2 means nothing to variant 'muon'"),
    ({"min_dim": 0}, "min_dim is 0"),
    ({"missing_gradient": "ignore"}, "missing_gradient is 'ignore'"),
    ({"max_grad_norm": 0.0}, "max_grad_norm is 0"),
    ({"max_grad_norm": -1.0}, "max_grad_norm is -1.0"),
    ({"timeout": 0.0}, "timeout is 0.0"),
    ({"adamw": {"lr": -1.0}}, "adamw lr is -1.0"),
    ({"adamw": {"betas": (0.9, 1.0)}}, "adamw beta is 1.0"),
    ({"adamw": {"eps": 0.0}}, "adamw eps is 0"),
    ({"rules": [Rule("muon", lr=-2.0)]}, "lr of Rule"),
])
def test_bad_value_is_named(keywords, complaint):
    with pytest.raises(ValueError, match=complaint):
        Options(**keywords).validate()


def test_each_variant_has_its_published_defaults_and_keeps_what_is_given():
    assert (Options().lr, Options().weight_decay, Options().momentum, Options().beta2) == (0.02, 0.0, 0.95, None)
    muon2 = Options(variant="muon2", weight_decay=0.0)
    assert (muon2.lr, muon2.weight_decay, muon2.beta2) == (0.01, 0.0, 0.95)


def test_unknown_option_is_refused():
    with pytest.raises(TypeError, match="ns_steps"):
        Options(ns_steps=5)
    with pytest.raises(TypeError, match="beta1"):
        Options(adamw={"beta1": 0.9})
