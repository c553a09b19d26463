"""Residuals under loss scales: they follow, overflow does no lasting harm, and what is lost is counted."""

import copy
import pickle
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecision, MixedPrecisionPolicy
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

import isthmus
from isthmus.model.models import groups_of
from support.checkpoints import (
    batch,
    ddp,
    fsdp1,
    fsdp2,
    group,
    hsdp_mesh,
    local,
    mesh_of,
    seed,
    unit_states,
)
from support.checks import Table

table = Table()
FLOAT16 = MixedPrecisionPolicy(param_dtype=torch.float16, reduce_dtype=torch.float16)
MAKERS: dict[str, Any] = {
    "fsdp2": lambda **options: fsdp2(mesh_of(group(**options))),
    "fsdp2 float16": lambda **options: fsdp2(mesh_of(group(**options)), mp_policy=FLOAT16),
    "hsdp": lambda **options: fsdp2(hsdp_mesh("2x2", **options)),
    "fsdp1": lambda **options: fsdp1(mesh_of(group(**options)), use_orig_params=True),
    "fsdp1 float16": lambda **options: fsdp1(
        mesh_of(group(**options)),
        mixed_precision=MixedPrecision(param_dtype=torch.float16, reduce_dtype=torch.float16),
    ),
    "ddp": lambda **options: ddp(group(**options), find_unused_parameters=True),
}


def make(kind: str, scaler: Any, **options: Any) -> nn.Module:
    with seed(0):
        return isthmus.prepare(MAKERS[kind](**options), name=kind, scaler=scaler)  # type: ignore[no-any-return]


def scaler_for(kind: str, **settings: Any) -> Any:
    return (ShardedGradScaler if kind.startswith("fsdp1") else torch.amp.GradScaler)("cpu", **settings)


def scaled_backward(model: nn.Module, scaler: Any, step: int, factor: float = 1) -> None:
    scaler.scale(factor * model(batch(step)).float().square().sum()).backward()


def group_of(model: nn.Module) -> dist.ProcessGroup:
    return groups_of(model)[-1]


@table
def an_overflow_skips_the_step_and_does_no_lasting_harm() -> None:
    codecs = {"fsdp2": "tagc", "fsdp2 float16": "tagc", "hsdp": "tagc", "fsdp1": "default", "ddp": "tagc"}
    for kind, codec in (codecs | {"fsdp1 float16": "default"}).items():
        scaler = scaler_for(kind, init_scale=8.0, growth_interval=1000)
        model = make(kind, scaler, codec=codec)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

        def step(number: int, factor: float = 1, model=model, scaler=scaler, optimizer=optimizer) -> None:
            scaled_backward(model, scaler, number, factor)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

        for number in range(3):
            step(number)
        weights = [local(parameter.detach()).clone() for parameter in model.parameters()]
        before = {unit["name"]: unit["residual"] for unit in unit_states(model)}
        assert isthmus.stats(group_of(model))["skipped_steps"] == 0, kind

        step(3, factor=float("inf") if dist.get_rank() == 1 else 1)

        for parameter, old in zip(model.parameters(), weights, strict=True):
            assert torch.equal(local(parameter.detach()), old), kind
        assert scaler.get_scale() == 4.0, kind
        unit_states(model)  # waits until the step is counted
        stats = isthmus.stats(group_of(model))
        assert stats["skipped_steps"] == 1, kind
        assert len(unit_states(model)) >= 2, kind
        units = unit_states(model) if codec != "default" else []
        for unit in units:
            assert unit["residual"].isfinite().all() and unit["result_residual"].isfinite().all(), kind
        # Undone, on ranks without overflow as well: residuals are as before, at half the scale.
        halved = all(torch.equal(unit["residual"], before[unit["name"]] / 2) for unit in units)
        everyones: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyones, halved)
        assert all(everyones), (kind, everyones)
        for number in range(4, 7):
            step(number)
            assert all(local(parameter.detach()).isfinite().all() for parameter in model.parameters()), kind
        assert not all(
            torch.equal(local(parameter.detach()), old)
            for parameter, old in zip(model.parameters(), weights, strict=True)
        ), kind
        assert isthmus.stats(group_of(model))["skipped_steps"] == 1, kind


@table
def residuals_follow_the_scale() -> None:
    """One scaler serves several models, and outlives them."""
    for kind in ("fsdp2", "hsdp", "fsdp1", "ddp"):
        scaler = scaler_for(kind, init_scale=8.0)
        models = [make(kind, scaler) for _ in range(2)]
        for model in models:
            isthmus.prepare(model, name=kind, scaler=scaler)  # again: changes nothing
            for step in range(3):  # the first two of DDP are exact
                scaled_backward(model, scaler, step)
        before = [[unit["residual"] for unit in unit_states(model)] for model in models]
        scaler.update(32.0)
        for model, residuals in zip(models, before, strict=True):
            for unit, residual in zip(unit_states(model), residuals, strict=True):
                assert residual.any() and torch.equal(unit["residual"], 4 * residual), kind
        counted = [group_of(model) for model in models]
        del models, model
        scaler.update(1.0)
        assert not any(isthmus.stats(one)["skipped_steps"] for one in counted), "the program lowered the scale"


@table
def a_disabled_scaler_is_left_alone() -> None:
    for enabled_later in (False, True):
        scaler = scaler_for("fsdp2", enabled=False)
        model = make("fsdp2", scaler)
        scaled_backward(model, scaler, 0)
        before = [unit["residual"] for unit in unit_states(model)]
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        scaler.step(optimizer)
        scaler.update(2.0 if enabled_later else None)
        assert all(torch.equal(u["residual"], b) for u, b in zip(unit_states(model), before, strict=True))
        assert isthmus.stats(group_of(model))["skipped_steps"] == 0


@table
def a_scaler_can_be_copied_and_pickled() -> None:
    for kind in ("fsdp2", "fsdp1"):
        scaler = scaler_for(kind, init_scale=8.0)
        plain = type(scaler)
        model = make(kind, scaler)
        assert isinstance(scaler, plain)
        scaled_backward(model, scaler, 0)
        residuals = [unit["residual"] for unit in unit_states(model)]
        copies = [copy.copy(scaler), copy.deepcopy(scaler), pickle.loads(pickle.dumps(scaler))]
        for other in copies:
            assert type(other) is plain
            assert other.state_dict() == scaler.state_dict()
            other.scale(torch.ones(()))
            other.update(1.0)  # moves no residual
        for unit, residual in zip(unit_states(model), residuals, strict=True):
            assert torch.equal(unit["residual"], residual)
        with pytest.raises(TypeError, match="scaler: expected a GradScaler, got int"):
            isthmus.prepare(model, name=kind, scaler=3)


test_scaler = table.in_world()
