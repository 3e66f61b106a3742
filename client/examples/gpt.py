# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""A byte-level GPT of about 3 M parameters, and real text that every Python has: its own library."""

import pathlib
import sysconfig

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY = 256


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.mix = nn.Linear(width, width, bias=False)
        self.norm_mlp = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        y = self.norm_attention(x)
        q, k, v = (f(y).view(batch, length, self.heads, -1).transpose(1, 2)
                   for f in (self.query, self.key, self.value))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.mix(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.relu(self.up(self.norm_mlp(x))).square())


class GPT(nn.Module):
    """Logits of the next byte; with `targets`, the mean loss instead."""

    def __init__(self, width: int = 256, layers: int = 4, heads: int = 4, context: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        for name, p in self.named_parameters():
            if p.ndim == 2:
                residual = name.endswith(("mix.weight", "down.weight"))
                nn.init.normal_(p, std=0.02 / (2 * layers) ** 0.5 if residual else 0.02)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.embedding(tokens) + self.positions(places)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        if targets is None:
            return logits
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def library_text(limit_bytes: int = 8 << 20) -> torch.Tensor:
    """Source files of the Python standard library, in order of their names, as bytes."""
    folder = pathlib.Path(sysconfig.get_paths()["stdlib"])
    pieces, size = [], 0
    for path in sorted(folder.glob("*.py")) + sorted(folder.glob("[a-z]*/*.py")):
        if "site-packages" in path.parts or "dist-packages" in path.parts:
            continue
        pieces.append(path.read_bytes())
        size += len(pieces[-1])
        if size >= limit_bytes:
            break
    if size < 1 << 20:
        raise FileNotFoundError(f"{folder} has {size} bytes of Python source; at least 1 MiB is needed")
    return torch.frombuffer(bytearray(b"".join(pieces)[:limit_bytes]), dtype=torch.uint8)


def batch_of(text: torch.Tensor, *, seed: int, step: int, rank: int, batch: int,
             context: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens and targets of one rank in one step; a restarted trainer draws the same."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step * 1_009 + rank)
    starts = torch.randint(len(text) - context - 1, (batch,), generator=generator)
    rows = torch.stack([text[s:s + context + 1] for s in starts.tolist()]).long()
    return rows[:, :-1], rows[:, 1:]
