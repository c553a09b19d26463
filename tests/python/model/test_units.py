"""Which unit each reduction of FSDP and DDP belongs to, whatever order models compute in."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import ShardingStrategy
from torch.utils.checkpoint import checkpoint

import isthmus
from isthmus.base.backends import backend_of
from support import checkpoints
from support.checkpoints import Block, batch, ddp, fsdp1, fsdp2, group, local, mesh_of
from support.checks import Table
from support.families import same_on_all_ranks
from support.tested_codecs import CODECS

table = Table()
STEPS = 4


class Model(checkpoints.Model):
    """Three blocks, in an order and a number that each call chooses; or checkpointed."""

    def __init__(self, reentrant: bool | None = None) -> None:
        torch.manual_seed(0)
        super().__init__()
        self.blocks.append(Block())
        self.reentrant = reentrant

    def forward(self, features: torch.Tensor, order: tuple[int, ...] = (0, 1, 2)) -> torch.Tensor:
        for index in order:
            block = self.blocks[index]
            if self.reentrant is None:
                features = block(features)
            else:
                features = checkpoint(block, features, use_reentrant=self.reentrant)
        return self.out(features)  # type: ignore[no-any-return]


def train(model: nn.Module, call: Callable[[int], torch.Tensor] | None = None) -> list[list[float]]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        output = call(step) if call else model(batch(step).requires_grad_())
        output.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [local(parameter).flatten().tolist() for parameter in model.parameters()]


def steps_of_units(process_group: dist.ProcessGroup) -> dict[str, int]:
    return {unit["name"]: unit["step"] for unit in backend_of(process_group).unit_states()}


@table
def ddp_without_the_option_is_exact_and_explained() -> None:
    process_group = group("default")
    train(ddp(process_group))
    stats = isthmus.stats(process_group)
    assert stats["compressed_calls"] == 0
    assert stats["exact_calls"]["not labelled, in a backward pass"] > STEPS
    assert 'gradients="backward"' in stats["notes"][0]
    process_group = group("default", gradients="backward")
    train(ddp(process_group))
    assert isthmus.stats(process_group)["compressed_calls"] > STEPS
    assert "gradients=backward" in isthmus.stats(process_group)["options"]


@table
def reentrant_checkpointing_changes_nothing() -> None:
    """Each block's backward pass is a graph task of its own there; a mixed-up residual would change the weights."""
    wraps = (
        lambda process_group, reentrant: fsdp2(mesh_of(process_group), Model(reentrant)),
        lambda process_group, reentrant: fsdp1(mesh_of(process_group), Model(reentrant), use_orig_params=True),
        lambda process_group, reentrant: fsdp1(
            mesh_of(process_group), Model(reentrant), sharding_strategy=ShardingStrategy.SHARD_GRAD_OP
        ),
    )
    for number, wrap in enumerate(wraps):
        weights = []
        for reentrant in (None, False, True):
            process_group = group(**CODECS["tagc"])
            weights.append(train(wrap(process_group, reentrant)))
            assert list(steps_of_units(process_group).values()) == [STEPS] * 4, (number, reentrant)
        assert weights[0] == weights[1] == weights[2], number


@table
def fsdp1_skips_reorders_and_accumulates() -> None:
    process_group = group("default")
    model: Any = fsdp1(mesh_of(process_group), Model())
    orders = [(0, 1, 2), (2, 0), (1, 2, 0), (0,)]

    def call(step: int) -> torch.Tensor:
        with model.no_sync():
            model(batch(step), orders[step]).square().mean().backward()
        with torch.no_grad():
            model(batch(step))
        return model(batch(step + 50), orders[step])  # type: ignore[no-any-return]

    train(model, call)
    steps = steps_of_units(process_group)
    assert sorted(steps.values()) == [2, 3, 4, 4]  # blocks 1, 2, 0, and the root
    assert same_on_all_ranks(steps)


@table
def fsdp2_units_are_modules_in_any_order() -> None:
    process_group = group("default")
    model = fsdp2(mesh_of(process_group), Model())
    orders = [(0, 1, 2), (2, 0), (1, 2, 0), (0,)]
    train(model, lambda step: model(batch(step), orders[step]))  # type: ignore[no-any-return]
    assert steps_of_units(process_group) == {"root": 4, "blocks.0": 4, "blocks.1": 2, "blocks.2": 3}


test_units = table.in_world(env={"ISTHMUS_NODES": "2x2", "ISTHMUS_LOG": "error"})
