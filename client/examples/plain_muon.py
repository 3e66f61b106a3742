# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""Muon and AdamW in one process, in plain PyTorch and fp32: what the service must agree with.

Knows nothing of the service; the examples and tests compare against it.
"""

import math
from collections.abc import Iterable

import torch
from torch import nn

# (a, b, c) of x -> a x + b x^3 + c x^5, one row an iteration; the last row repeats.
JORDAN = [(3.4445, -4.7750, 2.0315)]
YOU = [(4.0848, -6.8946, 2.9270), (3.9505, -6.3029, 2.6377), (3.7418, -5.5913, 2.3037),
       (2.8769, -3.1427, 1.2046), (2.8366, -3.0525, 1.2012)]


def newton_schulz(x: torch.Tensor, coefficients: list = JORDAN, iterations: int = 5) -> torch.Tensor:
    """Approximate polar factor of a matrix; zero stays zero."""
    norm = x.norm()
    if norm == 0:
        return x.clone()
    y = x / norm
    tall = y.shape[0] > y.shape[1]
    if tall:
        y = y.T
    for i in range(iterations):
        a, b, c = coefficients[min(i, len(coefficients) - 1)]
        gram = y @ y.T
        y = a * y + (b * gram + c * gram @ gram) @ y
    return y.T if tall else y


def scale_of(rule: str, rows: int, cols: int) -> float:
    return {"none": 1.0, "original": math.sqrt(max(1.0, rows / cols)),
            "match_rms_adamw": 0.2 * math.sqrt(max(rows, cols)),
            "spectral": math.sqrt(rows / cols)}[rule]


class PlainMuon(torch.optim.Optimizer):
    """Muon of whole matrices; a kernel is flattened to first dimension x rest."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float = 0.02, weight_decay: float = 0.0,
                 momentum: float = 0.95, nesterov: bool = True, accumulate: bool = False,
                 scale: str = "original", coefficients: list = JORDAN, iterations: int = 5) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})
        self._nesterov, self._accumulate, self._scale = nesterov, accumulate, scale
        self._coefficients, self._iterations = coefficients, iterations

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._update(p, group)

    def _update(self, p: nn.Parameter, group: dict) -> None:
        state, g, mu = self.state[p], p.grad.float(), group["momentum"]
        if not state:
            state["momentum"] = torch.zeros_like(g)
            state["master"] = p.detach().float().clone()
        m = state["momentum"]
        share = 1.0 if self._accumulate else 1.0 - mu
        m.mul_(mu).add_(g, alpha=share)
        direction = share * g + mu * m if self._nesterov else m
        matrix = direction.reshape(direction.shape[0], -1)
        update = newton_schulz(matrix, self._coefficients, self._iterations).reshape(g.shape)
        w, lr = state["master"], group["lr"]
        w.mul_(1 - lr * group["weight_decay"])
        w.sub_(update, alpha=lr * scale_of(self._scale, *matrix.shape))
        p.copy_(w)


class PlainPair:
    """PlainMuon for the matrices, torch.optim.AdamW for the rest, stepped as one."""

    def __init__(self, model: nn.Module, is_muon, lr: float, weight_decay: float = 0.0,
                 adamw: dict | None = None, max_grad_norm: float | None = None, **muon) -> None:
        named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        matrices = [p for n, p in named if is_muon(n)]
        rest = [p for n, p in named if not is_muon(n)]
        self._params, self._max_grad_norm = [p for _, p in named], max_grad_norm
        settings = {"lr": 3e-4, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.0, **(adamw or {})}
        self.optimizers: list[torch.optim.Optimizer] = []
        if matrices:
            self.optimizers.append(PlainMuon(matrices, lr, weight_decay, **muon))
        if rest:
            self.optimizers.append(torch.optim.AdamW(rest, foreach=False, **settings))

    def set_lr_factor(self, factor: float) -> None:
        """Each lr becomes `factor` times what it was at the start."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor

    def step(self) -> None:
        if self._max_grad_norm is not None:
            nn.utils.clip_grad_norm_(self._params, self._max_grad_norm)
        for optimizer in self.optimizers:
            optimizer.step()

    def zero_grad(self) -> None:
        for p in self._params:
            p.grad = None


@torch.no_grad()
def largest_difference(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> float:
    """max over tensors of |a - b| / |b| (Frobenius)."""
    assert left.keys() == right.keys(), left.keys() ^ right.keys()
    worst = 0.0
    for name, b in right.items():
        a, b = left[name].double(), b.double()
        worst = max(worst, ((a - b).norm() / b.norm().clamp_min(1e-30)).item())
    return worst
