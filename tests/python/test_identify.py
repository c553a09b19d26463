"""FSDP2 units that nothing tagged are told apart by their modules, and are exact where that cannot be done."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import isthmus
from checkpoints import Model, backward, exact_calls, fsdp2, group, hsdp_mesh, mesh_of, steps_of, trained, unit_states
from checks import Table, World
from isthmus import _identify

pytestmark = pytest.mark.timeout(300)
table = Table()
SEVERAL = "several live modules share this name and size"
UNITS = ("blocks.0", "blocks.1", "root")


def same_on_all_ranks(value: Any) -> bool:
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return all(other == value for other in values)


@table
def models_that_share_names_and_sizes_are_exact_while_they_live() -> None:
    process_group = group()
    first = trained(fsdp2(mesh_of(process_group)))
    assert steps_of(first) == dict.fromkeys(UNITS, 2)
    second = trained(fsdp2(mesh_of(process_group)))  # it has no names before its forward pass, and has them in it
    trained(first)
    assert exact_calls(process_group) == {SEVERAL: 4 * len(UNITS)}
    assert any("isthmus.prepare(model, name=" in note for note in isthmus.stats(process_group)["notes"])
    assert steps_of(first) == dict.fromkeys(UNITS, 2)

    trained(first, 3)
    assert exact_calls(process_group) == {SEVERAL: 7 * len(UNITS)}

    del second
    # Whether several are alive is asked again after 1, 2, 4, ... calls: now after one more, which stays exact.
    trained(first, 5)
    assert exact_calls(process_group) == {SEVERAL: 8 * len(UNITS)}
    assert steps_of(first) == dict.fromkeys(UNITS, 2 + 4)


@table
def groups_tell_models_apart() -> None:
    models = [trained(fsdp2(mesh_of(group()))) for _ in range(2)]
    trained(models[0])
    assert steps_of(models[0]) == dict.fromkeys(UNITS, 4)
    assert steps_of(models[1]) == dict.fromkeys(UNITS, 2)


@table
def sizes_tell_models_apart() -> None:
    process_group = group()
    models = [fsdp2(mesh_of(process_group)) for _ in range(2)]
    wide: Any = Model()
    wide.blocks = nn.ModuleList(nn.Linear(24, 24) for _ in range(2))
    wide.out = nn.Linear(24, 9)
    models[1] = fsdp2(mesh_of(process_group), wide)
    del wide
    gc.collect()
    for model in models:
        trained(model)
    assert exact_calls(process_group) == {}
    assert [unit["name"] for unit in unit_states(models[0])] == sorted(2 * UNITS)


@table
def frozen_models_do_not_count() -> None:
    process_group = group()
    teacher: Any = fsdp2(mesh_of(process_group)).requires_grad_(False)
    student = fsdp2(mesh_of(process_group))
    for step in range(2):
        with torch.no_grad():
            teacher(torch.randn(2, 24))
        backward(student, step)
        student.zero_grad()
    assert exact_calls(process_group) == {} and steps_of(student) == dict.fromkeys(UNITS, 2)
    teacher.reshard()
    teacher.requires_grad_(True)
    backward(student, 2)
    assert exact_calls(process_group) == {SEVERAL: len(UNITS)}


@table
def models_that_follow_one_another_have_units_of_their_own() -> None:
    process_group = group()
    for ordinal in range(3):
        model = trained(fsdp2(mesh_of(process_group)), ordinal + 1)
        suffix = f" ({ordinal + 1})" if ordinal else ""
        assert {name: number for name, number in steps_of(model).items() if suffix in name or not suffix} == {
            name + suffix: ordinal + 1 for name in UNITS
        }
        del model
        gc.collect()
    assert exact_calls(process_group) == {}


@table
def garbage_of_some_ranks_makes_no_difference() -> None:
    """Ranks collect at different times: what is asked about is collected first."""
    process_group = group()
    for _ in range(2):
        if dist.get_rank() % 2:
            gc.disable()
        model = trained(fsdp2(mesh_of(process_group)))
        names = sorted(steps_of(model))
        del model
        gc.enable()
        assert same_on_all_ranks(names)
    assert len(names) == 2 * len(UNITS)
    assert exact_calls(process_group) == {}


@table
def hsdp_models_are_told_apart_by_both_groups() -> None:
    mesh = hsdp_mesh("2x2")
    crossing = mesh.get_group("replicate")
    first = trained(fsdp2(mesh))
    assert steps_of(first) == dict.fromkeys(UNITS, 2)
    second = trained(fsdp2(mesh))
    assert exact_calls(crossing) == {SEVERAL: 2 * len(UNITS)}
    isthmus.prepare(first, name="first")
    isthmus.prepare(second, name="second")
    isthmus.reset_stats(crossing)
    trained(first)
    trained(second)
    assert exact_calls(crossing) == {}
    assert {name: number for name, number in steps_of(first).items() if "/" in name} == {
        f"{model}/{name}": 2 for model in ("first", "second") for name in UNITS
    }


@table
def one_of_two_may_be_prepared() -> None:
    """The other is still alone with its labels, for all that anybody can tell from a label: it stays exact."""
    process_group = group()
    first, second = (fsdp2(mesh_of(process_group)) for _ in range(2))
    isthmus.prepare(first, name="first")
    trained(first)
    trained(second)
    assert {name for name in steps_of(first) if name.startswith("first/")} == {f"first/{name}" for name in UNITS}
    assert exact_calls(process_group) in ({}, {SEVERAL: 2 * len(UNITS)})
    assert same_on_all_ranks((steps_of(first), exact_calls(process_group)))


@table
def modules_of_one_model_may_be_sharded_together() -> None:
    process_group = group()
    model = Model()
    fully_shard([model.blocks[0], model.blocks[1]], mesh=mesh_of(process_group))
    trained(fully_shard(model, mesh=mesh_of(process_group)))
    assert len(steps_of(model)) == 2 and set(steps_of(model).values()) == {2}
    assert exact_calls(process_group) == {}


@table
def tables_do_not_grow() -> None:
    process_group = group()
    for _ in range(4):
        model = trained(fsdp2(mesh_of(process_group)), 1)
        del model
        gc.collect()
    model = trained(fsdp2(mesh_of(process_group)), 1)
    answers = [answer for found in _identify._table.answers.values() for answer in found]
    assert len([answer for answer in answers if answer.unit.group() is not None]) <= 2 * len(UNITS)
    assert sum(len(units) for units in _identify._table.units.values()) < 100
    del model


def main(rank: int, world_size: int) -> dict[str, str]:
    return table.run_in_world()


@pytest.fixture(scope="module")
def world() -> World:
    return World(main, 4, timeout_s=240)


@pytest.mark.parametrize("name", table.names)
def test_identify(world: World, name: str) -> None:
    world.check(name)
