"""A tiny GPT in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Rotary position embedding (Su et al., 2021). x: ``[batch, heads, seq, size]``; positions: ``[batch, seq]``."""
    half = x.shape[-1] // 2
    frequencies = 10000 ** (-torch.arange(half, dtype=x.dtype, device=x.device) / half)
    angles = positions[:, None, :, None] * frequencies
    first, second = x.chunk(2, dim=-1)
    return torch.cat(
        [first * angles.cos() - second * angles.sin(), first * angles.sin() + second * angles.cos()], dim=-1
    )


class Block(nn.Module):
    """One pre-norm transformer layer: attention, then a two-layer perceptron."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width, bias=False)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.mlp_norm = nn.LayerNorm(width, bias=False)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width, bias=False), nn.GELU(), nn.Linear(4 * width, width, bias=False)
        )

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """x: ``[batch, seq, width]``; positions: ``[batch, seq]``; mask: bool ``[batch, 1, seq, seq]``, what to see."""
        batch, seq, width = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(batch, seq, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(
            rotate(query, positions), rotate(key, positions), value, attn_mask=mask
        )
        x = x + self.out(attended.transpose(1, 2).reshape(batch, seq, width))
        return x + self.mlp(self.mlp_norm(x))


class TinyGPT(nn.Module):
    """A decoder that never looks from one packed document into another."""

    def __init__(self, vocab_size: int, *, width: int = 64, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width, bias=False)
        self.head = nn.Linear(width, vocab_size, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, input_ids: Tensor, positions: Tensor, labels: Tensor) -> Tensor:
        """The sum of the losses of all real labels; labels of -100 count nothing. All: int64 ``[batch, seq]``."""
        document = (positions == 0).cumsum(1)  # positions count from the start of each document
        mask = (document[:, :, None] == document[:, None, :]).tril()[:, None]
        x = self.tokens(input_ids)
        for block in self.blocks:
            x = block(x, positions, mask)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")
