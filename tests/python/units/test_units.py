"""Which unit each reduction of FSDP, DDP and functional collectives belongs to; tags, and the state of units."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch.distributed.fsdp import ShardingStrategy
from torch.nn.parallel import DistributedDataParallel

import isthmus
from isthmus import native as _native
from python.units.models import (
    BLOCKS,
    STEPS,
    WORLD_SIZE,
    Model,
    batch,
    bits,
    fsdp1,
    fsdp2,
    make_group,
    train,
)
from support.checks import Table
from support.families import native, same_on_all_ranks
from support.tested_codecs import CODECS

table = Table()


def steps_of_units(group: dist.ProcessGroup) -> dict[str, int]:
    return {f"{unit['name']} {unit['collective']}": unit["step"] for unit in native(group).unit_states()}


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
    native(group).set_gradients("backward")
    train(ddp(group))
    assert isthmus.stats(group)["compressed_calls"] > STEPS
    assert "gradients=backward" in isthmus.stats(group)["options"]


class _FunctionalReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        shard = funcol.reduce_scatter_tensor(gradient.contiguous(), "sum", 0, ctx.group)
        return funcol.wait_tensor(shard).repeat(WORLD_SIZE), None


@table
def functional_collectives_are_named_by_their_order_and_keep_no_residual() -> None:
    group = make_group(gradients="backward")
    keeping = make_group(gradients="backward", **CODECS["tagc"])

    def backward(group: dist.ProcessGroup) -> dict[str, int]:
        leaves = [torch.zeros(4096, requires_grad=True) for _ in range(2)]
        sum(_FunctionalReduceScatter.apply(leaf, group).sum() for leaf in leaves).backward()  # type: ignore[union-attr]
        return steps_of_units(group)

    names = [f"reduce_scatter:float32:4096{suffix} reduce_scatter" for suffix in ("", " (2)")]
    for step in range(1, 4):
        assert backward(group) == dict.fromkeys(names, step)
        backward(keeping)
    assert isthmus.stats(group)["compressed_calls"] == 6
    stats = isthmus.stats(keeping)
    assert stats["exact_calls"] == {"unknown parameters, and the codec keeps a residual": 6}
    assert stats["compressed_calls"] == stats["residual_bytes"] == 0


def tagged(group: dist.ProcessGroup, **tag: Any) -> None:
    _native.load().push_unit(**tag)
    dist.reduce_scatter_tensor(torch.empty(1024), torch.ones(4096), group=group)
    _native.load().pop_unit()


@table
def tags_name_units() -> None:
    group = make_group()
    tagged(group, name="a", layout=5, exact="")
    tagged(group, name="a", layout=6, exact="")
    tagged(group, name="b", layout=(1 << 63) - 1, exact="")
    tagged(group, name="c", layout=0, exact="because I say so")
    with pytest.raises(RuntimeError, match="push_unit"):
        _native.load().pop_unit()
    units = {(unit["name"], unit["layout"]) for unit in native(group).unit_states()}
    assert units == {("a", 5), ("a", 6), ("b", (1 << 63) - 1)}
    assert isthmus.stats(group)["exact_calls"] == {"because I say so": 1}
    dist.reduce_scatter_tensor(torch.empty(1024), torch.ones(4096), group=group)
    assert isthmus.stats(group)["exact_calls"]["not recognised as a gradient"] == 1


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
