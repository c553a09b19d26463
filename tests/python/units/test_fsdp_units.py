"""Which unit each reduction of FSDP1 and FSDP2 belongs to: by name, by how often, and by what its residual does."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import ShardingStrategy

import isthmus
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
    same_on_all_ranks,
    steps_of_units,
    train,
)
from support.checks import Table, World
from support.tested_codecs import CODECS

pytestmark = pytest.mark.processes
table = Table()


@table
def fsdp1_under_reentrant_checkpointing_is_as_without() -> None:
    """Each block's backward pass is a graph task of its own there; a mixed-up residual would change the weights."""
    for settings in ({}, {"use_orig_params": True}, {"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP}):
        weights = []
        for reentrant in (None, False, True):
            group = make_group(**CODECS["tagc"])
            model = fsdp1(group, reentrant, **settings)
            train(model)
            weights.append(bits(model))
            assert list(steps_of_units(group).values()) == [STEPS] * (BLOCKS + 1), (settings, reentrant)
        assert weights[0] == weights[1] == weights[2], settings


@table
def fsdp1_models_in_one_group_have_units_of_their_own() -> None:
    group = make_group()
    models = [fsdp1(group), fsdp1(group)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    for step in range(STEPS):
        for index in (0, 1) if step % 2 else (1, 0):
            models[index](batch(step)).square().mean().backward()
            optimizers[index].step()
            optimizers[index].zero_grad()
    assert list(steps_of_units(group).values()) == [STEPS] * 2 * (BLOCKS + 1)


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
def fsdp1_with_two_levels() -> None:
    """HYBRID_SHARD reduce-scatters over the node, exactly, and all-reduces between nodes, inside the same label."""
    rank = dist.get_rank()
    node, _ = dist.new_subgroups_by_enumeration([[0, 1], [2, 3]], backend="isthmus")
    between = [
        dist.new_group(ranks_of_rail, backend="isthmus", pg_options=isthmus.Options(nodes="2x2", min_elements=0))
        for ranks_of_rail in ([0, 2], [1, 3])
    ][rank % 2]
    model = fsdp1((node, between), sharding_strategy=ShardingStrategy.HYBRID_SHARD)
    train(model)
    steps = steps_of_units(between)
    assert list(steps.values()) == [STEPS] * (BLOCKS + 1)
    assert all(name.endswith("all_reduce") for name in steps)
    assert isthmus.stats(between)["collectives"]["all_reduce"]["calls"] == STEPS * (BLOCKS + 1)


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


@table
def fsdp2_accumulates() -> None:
    group = make_group()
    model: Any = fsdp2(group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        for micro_batch in range(3):
            model.set_requires_gradient_sync(micro_batch == 2)
            model(batch(10 * step + micro_batch)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert list(steps_of_units(group).values()) == [STEPS] * (BLOCKS + 1)


@table
def a_new_model_inherits_nothing() -> None:
    for make in (fsdp1, fsdp2):
        group = make_group()
        model = make(group)
        train(model)
        before = steps_of_units(group)
        if dist.get_rank() % 2:  # the collector runs when it likes
            gc.disable()
        del model
        model = make(group)
        train(model, steps=1)
        gc.enable()
        added = {name: step for name, step in steps_of_units(group).items() if name not in before}
        assert len(added) == BLOCKS + 1
        assert set(added.values()) == {1}
        assert all("(" in name for name in added)
        assert same_on_all_ranks(added)


def main(rank: int, world_size: int) -> dict[str, str]:
    return table.run_in_world()


@pytest.fixture(scope="module")
def world() -> World:
    return World(main, WORLD_SIZE, env={"ISTHMUS_NODES": "2x2", "ISTHMUS_LOG": "error"})


@pytest.mark.parametrize("name", table.names)
def test_units(world: World, name: str) -> None:
    world.check(name)
