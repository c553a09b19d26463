"""Small models, their groups, and what tests of units ask of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.utils.checkpoint import checkpoint

import isthmus

WORLD_SIZE = 4
FEATURES = 32
BLOCKS = 3
STEPS = 4


def make_group(**options: Any) -> dist.ProcessGroup:
    options = {"nodes": "2x2", "min_elements": 0, **options}
    return dist.new_group(backend="isthmus", pg_options=isthmus.Options(**options))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, FEATURES)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(features))


class Model(nn.Module):
    """Blocks of one size, in an order and a number that each call chooses; or checkpointed."""

    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(FEATURES, FEATURES)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.reentrant = reentrant

    def forward(self, features: torch.Tensor, order: tuple[int, ...] = tuple(range(BLOCKS))) -> torch.Tensor:
        features = self.first(features)
        for index in order:
            block = self.blocks[index]
            if self.reentrant is None:
                features = block(features)
            else:
                features = checkpoint(block, features, use_reentrant=self.reentrant)
        return features


class TwoLayers(nn.Module):
    """Two layers of 64 features, without biases."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up = nn.Linear(64, 64, bias=False)
        self.down = nn.Linear(64, 64, bias=False)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.down(torch.tanh(self.up(features)))  # type: ignore[no-any-return]


def fsdp1(group: Any, reentrant: bool | None = None, **settings: Any) -> nn.Module:
    return FullyShardedDataParallel(
        Model(reentrant),
        process_group=group,
        device_id=torch.device("cpu"),
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        **settings,
    )


def fsdp2(group: dist.ProcessGroup, model: nn.Module | None = None) -> nn.Module:
    model = model or Model()
    mesh = DeviceMesh.from_group(group, "cpu")
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def batch(step: int) -> torch.Tensor:
    return torch.randn(8, FEATURES, generator=torch.Generator().manual_seed(100 * step + dist.get_rank()))


def train(model: nn.Module, steps: int = STEPS, call: Callable[[nn.Module, int], torch.Tensor] | None = None) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        output = call(model, step) if call else model(batch(step))
        output.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def bits(model: nn.Module) -> list[list[float]]:
    return [
        (p.to_local() if isinstance(p, torch.distributed.tensor.DTensor) else p).flatten().tolist()
        for p in model.parameters()
    ]
