"""Residuals belong to parameters of living models: nothing done to one model touches another's."""

import gc
from typing import Any

import torch
import torch.distributed as dist

import isthmus
from python.model.saved_models import saved, warnings_of_rank_0
from support.checkpoints import (
    fsdp1,
    fsdp2,
    group,
    mesh_of,
    steps_of,
    trained,
    unit_states,
)
from support.checks import Table

table = Table()


def residuals(process_group: dist.ProcessGroup, name: str) -> list[torch.Tensor]:
    states = isthmus.base.backends.backend_of(process_group).unit_states()
    found = [state["residual"] for state in states if state["name"].startswith(f"{name}/")]
    assert len(found) == 3 and all(residual.any() for residual in found)
    return found


def same(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return all(map(torch.equal, left, right))


@table
def clearing_scaling_and_loading_concern_one_model() -> None:
    process_group = group()
    a, b = (trained(isthmus.prepare(fsdp2(mesh_of(process_group)), name=name)) for name in ("a", "b"))
    state = isthmus.state_dict(a)
    trained(b)
    of_b = residuals(process_group, "b")
    of_a = residuals(process_group, "a")
    isthmus.load_state_dict(state, a)
    assert same(residuals(process_group, "a"), of_a)
    assert same(residuals(process_group, "b"), of_b)
    isthmus.scale_residuals(3.0, a)
    assert same(residuals(process_group, "b"), of_b)
    isthmus.clear_residuals(a)
    assert same(residuals(process_group, "b"), of_b)
    assert {found["name"][:2] for found in unit_states(a)} == {"b/"}


@table
def models_that_are_gone_leave_no_memory_and_no_place() -> None:
    for prepare in (False, True):
        process_group = group(max_units=6)
        memory = []
        for _ in range(4):
            model = fsdp2(mesh_of(process_group))
            trained(isthmus.prepare(model) if prepare else model)
            stats = isthmus.stats(process_group)
            memory.append(stats["residual_bytes"])
            del model
            gc.collect()
        assert set(memory) == {memory[0]} and memory[0] > 0, memory
        assert stats["num_units"] <= 6
        assert "more than max_units units" not in stats["exact_calls"]


@table
def a_checkpoint_holds_the_living_under_names_of_their_own() -> None:
    """The second of two models of equal names is the first where it is resumed."""
    for prepare in (False, True):
        process_group = group()
        first, second = (fsdp2(mesh_of(process_group)) for _ in range(2))
        for model, passes in ((first, 2), (second, 5)):
            trained(isthmus.prepare(model) if prepare else model, passes)
        names = {name for name, step in steps_of(second).items() if step == 5}
        assert names == {"blocks.0 (2)", "blocks.1 (2)", "root (2)"}
        expected = sorted((s["name"].split(" ")[0], s["residual"]) for s in unit_states(second) if s["step"] == 5)
        del first, model
        gc.collect()
        folders = [saved(second)]
        if prepare:
            folders.append(saved(process_group))  # type: ignore[arg-type]
        for folder in folders:
            resumed = fsdp2(mesh_of(group()))
            if prepare:
                isthmus.prepare(resumed)
            report = isthmus.load_checkpoint(folder, resumed)
            assert sorted(report.restored) == ["blocks.0", "blocks.1", "root"] and not report.dropped
            found = sorted((state["name"], state["residual"]) for state in unit_states(resumed))
            assert [name for name, _ in found] == [name for name, _ in expected]
            assert same([residual for _, residual in found], [residual for _, residual in expected])


@table
def attaching_again_takes_no_more_memory() -> None:
    process_group = dist.new_group(backend="gloo")
    options: dict[str, Any] = {"codec": "tagc", "nodes": "2x2", "min_elements": 0}
    other = isthmus.attach(fsdp2(mesh_of(process_group)), name="other", **options)
    trained(other)
    model = fsdp2(mesh_of(process_group))
    memory = []
    for _ in range(4):
        trained(isthmus.attach(model, **options))
        stats = isthmus.stats(process_group)
        memory.append((stats["residual_bytes"], stats["num_units"]))
        isthmus.detach(model)
    assert set(memory) == {memory[0]}, memory


@table
def preparing_fsdp1_between_steps_makes_new_units() -> None:
    process_group = group()
    model = trained(fsdp1(mesh_of(process_group), use_orig_params=True))
    assert len(unit_states(model)) == 3
    memory = isthmus.stats(process_group)["residual_bytes"]
    trained(isthmus.prepare(model), passes=1)
    assert steps_of(model) == dict.fromkeys(("blocks.0", "blocks.1", "root"), 1)
    assert isthmus.stats(process_group)["residual_bytes"] == memory


@table
def fsdp1_prepared_after_saving_drops_and_says_so() -> None:
    folder = saved(trained(fsdp1(mesh_of(group()), use_orig_params=True)))
    process_group = group()
    model = isthmus.prepare(fsdp1(mesh_of(process_group), use_orig_params=True))
    with warnings_of_rank_0() as messages:
        report = isthmus.load_checkpoint(folder, model)
    assert not report.restored and len(report.dropped) == 3
    assert all("before isthmus.prepare" in reason for _, reason in report.dropped)
    assert len(messages) in (0, 1)
    assert isthmus.stats(process_group)["dropped_residuals"] == 3


test_owners = table.in_world()
