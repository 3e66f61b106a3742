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
    ({"iterations": 21}, "iterations is 21"),
    ({"scale": "spectrum"}, "scale is 'spectrum'; it must be one of 'none', 'original'"),
    ({"coefficients": "quintic"}, "coefficients is 'quintic'"),
    ({"momentum_form": "lerp"}, "momentum_form is 'lerp'"),
    ({"eps_mode": "max"}, "eps_mode is 'max'"),
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


def test_unknown_option_is_refused():
    with pytest.raises(TypeError, match="ns_steps"):
        Options(ns_steps=5)
    with pytest.raises(TypeError, match="beta1"):
        Options(adamw={"beta1": 0.9})
