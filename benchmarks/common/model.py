"""A byte-level GPT, small enough to train on a laptop's cores and shaped like the large ones."""

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from isthmus.benchmarks.common.shape import HEAD_WIDTH, ModelShape

VOCABULARY = 256
INIT_STD = 0.04


class Block(nn.Module):
    """Causal attention and an MLP, each after a norm and around a skip connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.num_heads = width // HEAD_WIDTH
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.projection = nn.Linear(width, width, bias=False)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, time, width] to the same."""
        batch, time, width = x.shape
        heads = self.qkv(self.norm1(x)).view(batch, time, 3, self.num_heads, HEAD_WIDTH)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).reshape(batch, time, width))
        hidden: Tensor = functional.gelu(self.up(self.norm2(x)))
        mixed: Tensor = x + self.down(hidden)
        return mixed


class ByteGpt(nn.Module):
    """A GPT over bytes; blocks in `blocks`, everything else belongs to the root."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, shape.width)
        self.position = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(Block(shape.width) for _ in range(shape.num_layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, VOCABULARY, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=INIT_STD)

    def forward(self, tokens: Tensor) -> Tensor:
        """[batch, time] bytes to [batch, time, 256] logits."""
        x = self.embedding(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    """Mean cross-entropy, in nats a byte, of each byte of `batch` [sequences, context + 1] after those before it."""
    logits = model(batch[:, :-1])
    return functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
