"""Which unit each reduction of FSDP and DDP belongs to, whatever order models compute in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import isthmus
from isthmus.backends import backend_of
from support.checks import Table
from support.families import same_on_all_ranks
from support.tested_codecs import CODECS

table = Table()
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


def steps_of_units(group: dist.ProcessGroup) -> dict[str, int]:
    return {f"{unit['name']} {unit['collective']}": unit["step"] for unit in backend_of(group).unit_states()}


def ddp(group: dist.ProcessGroup, **settings: Any) -> nn.Module:
    return DistributedDataParallel(Model(), process_group=group, bucket_cap_mb=0.005, **settings)


@table
def ddp_without_the_option_is_exact_and_explained() -> None:
    group = make_group()
    train(ddp(group))
    stats = isthmus.stats(group)
    assert stats["compressed_calls"] == 0
    assert stats["exact_calls"]["not labelled, in a backward pass"] > STEPS
    assert 'gradients="backward"' in stats["notes"][0]
    backend_of(group).set_gradients("backward")
    train(ddp(group))
    assert isthmus.stats(group)["compressed_calls"] > STEPS
    assert "gradients=backward" in isthmus.stats(group)["options"]


@table
def fsdp1_under_reentrant_checkpointing_is_as_without() -> None:
    """Each block's backward pass is a graph task of its own there; a mixed-up residual would change the weights."""
    for settings in ({"use_orig_params": True}, {"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP}):
        weights = []
        for reentrant in (None, False, True):
            group = make_group(**CODECS["tagc"])
            model = fsdp1(group, reentrant, **settings)
            train(model)
            weights.append(bits(model))
            assert list(steps_of_units(group).values()) == [STEPS] * (BLOCKS + 1), (settings, reentrant)
        assert weights[0] == weights[1] == weights[2], settings


@table
def fsdp1_skips_reorders_and_accumulates() -> None:
    group = make_group()
    model = fsdp1(group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, order in enumerate([(0, 1, 2), (2, 0), (1, 2, 0), (0,)]):
        with model.no_sync():
            model(batch(step), order).square().mean().backward()
        model(batch(step + 50), order).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            model(batch(step))
    steps = steps_of_units(group)
    assert sorted(steps.values()) == [2, 3, 4, 4]  # blocks 1, 2, 0, and the root
    assert same_on_all_ranks(steps)


@table
def fsdp2_units_are_modules_in_any_order() -> None:
    group = make_group()
    model = fsdp2(group)
    orders = [(0, 1, 2), (2, 0), (1, 2, 0), (0,)]
    train(model, call=lambda module, step: module(batch(step), orders[step]))
    steps = steps_of_units(group)
    assert steps == {
        "root reduce_scatter": 4,
        "blocks.0 reduce_scatter": 4,
        "blocks.1 reduce_scatter": 2,
        "blocks.2 reduce_scatter": 3,
    }


@table
def fsdp2_under_reentrant_checkpointing_is_as_without() -> None:
    weights = []
    for reentrant in (None, False, True):
        group = make_group(**CODECS["tagc"])
        model = fsdp2(group, Model(reentrant))
        train(model)
        weights.append(bits(model))
        assert list(steps_of_units(group).values()) == [STEPS] * (BLOCKS + 1)
    assert weights[0] == weights[1] == weights[2]


def main(rank: int, world_size: int) -> dict[str, str]:
    return table.run_in_world()


test_units = table.in_world(main, WORLD_SIZE, env={"ISTHMUS_NODES": "2x2", "ISTHMUS_LOG": "error"})
