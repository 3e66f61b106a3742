# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""PyTorch client of the dmuon optimizer service.

    import dmuon_client as dmuon
    opt = dmuon.Muon(model, lr=0.02, weight_decay=0.1, adamw=dict(lr=3e-4))
"""

from dmuon_client.optimizer import Muon
from dmuon_client.options import AdamW, Options
from dmuon_client.qk_clip import QKClip
from dmuon_client.routing import Route, RoutingError, Rule, route_model
from dmuon_client.session import DmuonError, PlanInfo, StepResult
from dmuon_client.sharding import ShardingError
from dmuon_client.views import QKV, Experts, GateUp, RowBlocks

__version__ = "0.1.0"
__all__ = [
    "AdamW", "DmuonError", "Experts", "GateUp", "Muon", "Options", "PlanInfo", "QKClip", "QKV", "Route", "RoutingError",
    "RowBlocks", "Rule", "ShardingError", "StepResult", "route_model",
]
