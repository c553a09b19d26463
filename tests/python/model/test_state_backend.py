"""What is loaded takes effect; what cannot be kept is dropped and named; what it all takes."""

import json
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import isthmus
from isthmus.model.models import groups_of
from python.model.saved_models import model_on, saved, warnings_of_rank_0
from support.checkpoints import (
    WIDTH,
    Block,
    backward,
    fingerprint,
    fsdp1,
    fsdp2,
    group,
    mesh_of,
    trained,
    unit_states,
)
from support.checks import Table

table = Table()


@table
def another_codec_takes_the_residuals_along() -> None:
    folder = saved(trained(model_on()))
    for codec, exact_steps in (("none", 2), ("default", 1)):
        process_group = group(codec)
        model = fsdp2(mesh_of(process_group))
        isthmus.load_checkpoint(folder, model)
        assert all(unit["residual"].any() for unit in unit_states(model))
        trained(model, passes=2)
        stats = isthmus.stats(process_group)
        assert stats["residual_bytes"] == 0
        assert stats["exact_calls"]["takes the residual along"] == stats["num_units"] == 3
        assert sum(stats["exact_calls"].values()) == 3 * exact_steps
        assert stats["compressed_calls"] == 3 * (2 - exact_steps)


@table
def the_default_codec_saves_steps_alone() -> None:
    """There is no residual, but what it does to a gradient depends on the step."""
    model = trained(fsdp2(mesh_of(group("default"))), passes=3)
    assert not any(isinstance(value, torch.Tensor) for value in isthmus.state_dict(model).values())
    other = fsdp2(mesh_of(group("default")))
    assert len(isthmus.load_checkpoint(saved(model), other).restored) == 3
    assert {unit["step"] for unit in unit_states(other)} == {3}


class Other(nn.Module):
    """As `Model`, but for its first block's shape."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(WIDTH, WIDTH), Block()])
        self.last = nn.Linear(WIDTH, 7)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.last(self.blocks[1](self.blocks[0](features)))  # type: ignore[no-any-return]


@table
def units_of_another_model_are_dropped_one_by_one() -> None:
    folder = saved(trained(model_on()))
    process_group = group()
    other = fsdp2(mesh_of(process_group), Other())
    with warnings_of_rank_0() as messages:
        report = isthmus.load_checkpoint(folder, other)
    assert report.restored == ("blocks.1",)
    assert [name for name, _ in report.dropped] == ["blocks.0", "root"]
    assert all("parameters of other names or shapes" in reason for _, reason in report.dropped)
    assert all("of 'blocks.0', 'root': the unit has" in message for message in messages)
    assert [unit["name"] for unit in unit_states(other)] == ["blocks.1"]
    assert isthmus.stats(process_group)["dropped_residuals"] == 2


@table
def on_other_nodes_residuals_are_dropped_and_named() -> None:
    for make in (fsdp2, fsdp1):
        folder = saved(trained(make(mesh_of(group()))))
        process_group = group(nodes="4x1")
        model = trained(make(mesh_of(process_group)))
        with warnings_of_rank_0() as messages:
            report = isthmus.load_checkpoint(folder, model)
        assert len(report.dropped) == 3 and not report.restored
        assert {reason for _, reason in report.dropped} == {"saved on other ranks or nodes: 4 ranks on 2 nodes"}
        assert len(messages) in (0, 1)
        assert isthmus.stats(process_group)["dropped_residuals"] == 3
        assert unit_states(model) == []
        backward(model, 0)


@table
def a_model_under_another_name_finds_nothing() -> None:
    folder = saved(trained(isthmus.prepare(model_on(), name="one")))
    with warnings_of_rank_0():
        report = isthmus.load_checkpoint(folder, isthmus.prepare(model_on(), name="two"))
    assert [name for name, _ in report.dropped] == ["one/blocks.0", "one/blocks.1", "one/root"]
    assert all("no such unit" in reason for _, reason in report.dropped)


@table
def preparing_later_keeps_what_was_saved_without() -> None:
    model = trained(model_on())
    totals = {unit["name"]: unit["residual"] for unit in unit_states(model)}
    prepared = isthmus.prepare(model_on())
    report = isthmus.load_checkpoint(saved(model), prepared)
    assert len(report.restored) == 3
    backward(prepared, 2)
    units = unit_states(prepared)
    assert {unit["step"] for unit in units} == {3}  # the units that were loaded, and no others beside them
    assert {unit["name"] for unit in units} == totals.keys()
    assert all(unit["layout"] for unit in units)


@table
def loading_replaces_what_was_there() -> None:
    model = trained(model_on())
    folder, before = saved(model), fingerprint(model)
    trained(model, 3)
    assert fingerprint(model) != before
    isthmus.load_checkpoint(folder, model)
    assert fingerprint(model) == before
    isthmus.load_state_dict(isthmus.state_dict(model), model)
    assert fingerprint(model) == before


@table
def states_are_copies() -> None:
    model = trained(model_on())
    state = isthmus.state_dict(model)
    before = {key: value.clone() for key, value in state.items() if isinstance(value, torch.Tensor)}
    trained(model)
    assert before and all(torch.equal(state[key], value) for key, value in before.items())


@table
def groups_and_all_groups_may_be_meant() -> None:
    first, second = group(), group()
    models = [trained(fsdp2(mesh_of(found))) for found in (first, second)]
    rank = dist.get_rank()
    assert len(json.loads(isthmus.state_dict(first)[f"rank{rank}"])["groups"]) == 1
    everything = isthmus.state_dict()
    prints = [fingerprint(model) for model in models]
    isthmus.clear_residuals(first)
    assert unit_states(models[0]) == [] and fingerprint(models[1]) == prints[1]
    isthmus.scale_residuals(3.0, models[1])
    assert fingerprint(models[1]) != prints[1]
    isthmus.load_state_dict(everything)
    assert [fingerprint(model) for model in models] == prints
    gloo = dist.new_group(backend="gloo")
    with pytest.raises(ValueError, match="the backend of this group is gloo, not isthmus"):
        isthmus.state_dict(gloo)
    with pytest.raises(ValueError, match="the model is reduced over no process group of isthmus"):
        isthmus.state_dict(nn.Linear(2, 2))


@table
def what_rests_while_parameters_have_no_gradients_is_saved_too() -> None:
    """A step without one of its gradients is exact; with fewer parameters that are trained there is a residual more."""
    model: Any = isthmus.prepare(model_on(), name="skips")
    trained(model)
    all_trained = [unit for unit in unit_states(model) if unit["name"] == "skips/blocks.0"]
    features = torch.randn(8, WIDTH)
    calls = isthmus.stats(mesh_group(model))["exact_calls"]
    hook = model.blocks[0].up.register_forward_hook(lambda *values: values[-1].detach())
    model(features).sum().backward()
    hook.remove()
    assert unit_states(model)[0]["step"] == all_trained[0]["step"], "it rests"
    rested = "a parameter has no gradient, and the residual rests"
    assert isthmus.stats(mesh_group(model))["exact_calls"] == {**calls, rested: 1}
    model.blocks[0].down.weight.requires_grad_(False)
    for _ in range(2):
        model(features).sum().backward()
    units = [unit for unit in unit_states(model) if unit["name"] == "skips/blocks.0"]
    assert sorted(unit["step"] for unit in units) == [2, 2] and len({unit["layout"] for unit in units}) == 2
    assert any(torch.equal(unit["residual"], all_trained[0]["residual"]) for unit in units)
    found = fingerprint(model)
    isthmus.load_checkpoint(saved(model), model)
    assert fingerprint(model) == found


def mesh_group(model: nn.Module) -> dist.ProcessGroup:
    return groups_of(model)[0]


test_state = table.in_world()
