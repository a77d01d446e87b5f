"""A small decoder in the style of Llama: RMSNorm, rotary positions, SwiGLU, untied embeddings, causal attention.

Shapes: B batch, T time, D width, H heads, K width per head, V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes; the defaults give 2.6 million parameters."""

    vocab_size: int = 4096
    width: int = 160
    layers: int = 4
    heads: int = 5
    hidden: int = 448
    dropout: float = 0.0
    rope_base: float = 10_000.0  # Llama's own, for short contexts

    def __post_init__(self) -> None:
        if self.width % self.heads or (self.width // self.heads) % 2:
            raise ValueError(f"width {self.width} must be an even multiple of heads {self.heads}")


class Attention(nn.Module):
    """Causal self-attention with rotary positions."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.shape = shape
        self.qkv = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.out = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        batch, time, width = x_BTD.shape
        heads = self.shape.heads
        q, k, v = self.qkv(x_BTD).view(batch, time, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
        rotation = _rotation(time, width // heads, base=self.shape.rope_base, device=x_BTD.device)
        mixed_BHTK = F.scaled_dot_product_attention(_rotate(q, rotation), _rotate(k, rotation), v, is_causal=True)
        out: torch.Tensor = self.out(mixed_BHTK.transpose(1, 2).reshape(batch, time, width))
        return out


class Block(nn.Module):
    """Attention and a gated feed-forward layer, each normed before and added after."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.width, eps=1e-5)
        self.attention = Attention(shape)
        self.feed_norm = nn.RMSNorm(shape.width, eps=1e-5)
        self.gate = nn.Linear(shape.width, shape.hidden, bias=False)
        self.up = nn.Linear(shape.width, shape.hidden, bias=False)
        self.down = nn.Linear(shape.hidden, shape.width, bias=False)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        x_BTD = x_BTD + self.dropout(self.attention(self.attention_norm(x_BTD)))
        normed = self.feed_norm(x_BTD)
        out: torch.Tensor = x_BTD + self.dropout(self.down(F.silu(self.gate(normed)) * self.up(normed)))
        return out


class LanguageModel(nn.Module):
    """Tokens in, logits of the next token out."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocab_size, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width, eps=1e-5)
        self.head = nn.Linear(shape.width, shape.vocab_size, bias=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)  # GPT-2's and Llama's

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        x_BTD = self.embedding(tokens_BT)
        for block in self.blocks:
            x_BTD = block(x_BTD)
        logits_BTV: torch.Tensor = self.head(self.norm(x_BTD))
        return logits_BTV


def _rotation(time: int, width: int, *, base: float, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    frequencies = base ** (-torch.arange(0, width, 2, device=device, dtype=torch.float32) / width)
    angles = torch.outer(torch.arange(time, device=device, dtype=torch.float32), frequencies)
    return angles.cos(), angles.sin()


def _rotate(x_BHTK: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    cos, sin = rotation
    first, second = x_BHTK.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)
