"""What noise in unused rows of an embedding costs: `python -m isthmus.benchmarks.convergence.rare_tokens`.

Two nodes of one rank train an embedding of 4096 tokens, most of them rare (Zipf), and a network that tells a token's
class from it and two noisy neighbours. The loss is that of all tokens alike. In one arm the embedding stays exact.
"""

import argparse
import os
import statistics
import tempfile
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing.spawn import spawn

import isthmus

TOKENS, CLASSES, CONTEXT = 4096, 64, 3
ARMS: dict[str, dict[str, Any]] = {
    "exact": {"codec": "none"},
    "8 bits": {"bits": 8},
    "4 bits": {"bits": 4},
    "4 bits, embedding exact": {"bits": 4, "units": "!embedding"},
}


class Model(nn.Module):
    """Sums the embeddings of a context. The embedding is a unit of its own, so that it can be left exact."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, width)
        self.head = nn.Sequential(nn.Linear(width, 256), nn.GELU(), nn.Linear(256, CLASSES))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of the classes."""
        logits: torch.Tensor = self.head(self.embedding(tokens).sum(1))
        return logits


def _final_loss(arm: str, width: int, seed: int, steps: int) -> float:
    torch.manual_seed(seed)
    model = Model(width)
    classes = torch.randint(CLASSES, (TOKENS,))
    chances = 1 / torch.arange(1.0, TOKENS + 1)
    by_class = [torch.where(classes == number, chances, 0) for number in range(CLASSES)]
    of_class = torch.stack([each / each.sum() for each in by_class])

    def batch(weights: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        first = torch.multinomial(weights, size, replacement=True)
        others = torch.multinomial(of_class[classes[first]], CONTEXT - 1, replacement=True)
        noise = torch.multinomial(chances, size * (CONTEXT - 1), replacement=True).view(size, -1)
        others = torch.where(torch.rand(size, CONTEXT - 1) < 0.7, noise, others)
        return torch.cat([first[:, None], others], 1), classes[first]

    fully_shard(model.embedding)
    fully_shard(model)
    isthmus.prepare(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    torch.manual_seed(1000 * seed + dist.get_rank())
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 3e-3 * (1 - step / steps)
        tokens, target = batch(chances, 64)
        loss = nn.functional.cross_entropy(model(tokens), target)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    torch.manual_seed(seed)
    tokens, target = batch(torch.ones(TOKENS), 16384)
    with torch.no_grad():
        return float(nn.functional.cross_entropy(model(tokens), target))


def _rank(rank: int, folder: str, arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    os.environ["ISTHMUS_NODES"] = "2x1"
    for width in arguments.widths:
        losses: dict[str, list[float]] = {}
        for seed in range(arguments.seeds):
            for arm, options in ARMS.items():
                dist.init_process_group(
                    "isthmus",
                    init_method=f"file://{folder}/{width}-{seed}-{arm}".replace(" ", "-"),
                    rank=rank,
                    world_size=2,
                    pg_options=isthmus.Options(min_elements=0, **options),
                )
                losses.setdefault(arm, []).append(_final_loss(arm, width, seed, arguments.steps))
                dist.destroy_process_group()
        for arm, values in losses.items():
            more = [100 * (value / exact - 1) for value, exact in zip(values, losses["exact"], strict=True)]
            spread = statistics.stdev(more) if len(more) > 1 else 0
            if rank == 0:
                print(
                    f"width {width}, {arm}: loss {statistics.fmean(values):.4f}, "
                    f"{statistics.fmean(more):+.2f}% (standard deviation {spread:.2f}, {len(more)} seeds)",
                    flush=True,
                )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--widths", type=int, nargs="+", default=[96, 128])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1000)
    with tempfile.TemporaryDirectory() as made:
        spawn(_rank, (made, parser.parse_args()), nprocs=2)  # type: ignore[no-untyped-call]
