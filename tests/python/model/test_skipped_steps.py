"""Steps that the program throws away: by a loop that skips gradients whose norm is too large, beside exact training."""

import math
from typing import Any

import torch
from torch import nn

import isthmus
from support.checkpoints import batch, ddp, fsdp2, group, hsdp_mesh, local, mesh_of, seed, unit_states
from support.checks import Table
from support.families import gathered
from support.logs import logged

table = Table()
FEEDBACK = {"codec": "default", "error_feedback": "on"}
ARMS: dict[str, dict[str, Any]] = {
    "tagc": {"codec": "tagc"},
    "flat": {"codec": "tagc", "tiers": "flat"},
    "quant": FEEDBACK,
}
MAKERS: dict[str, Any] = {
    "fsdp2": lambda **options: fsdp2(mesh_of(group(**options))),
    "hsdp": lambda **options: fsdp2(hsdp_mesh("2x2", **options)),
    "ddp": lambda **options: ddp(group(**options), find_unused_parameters=True),
}
NORMAL, SPIKE = 1.0, 1e6
LARGEST = 3e38  # of one element
LIMIT = 10  # times the norm of the first step
STEPS = {number: NORMAL for number in range(13)} | {5: SPIKE, 9: LARGEST}


def loss_of(model: nn.Module, number: int, factor: float) -> torch.Tensor:
    """Return the loss of step `number`, whose gradient is `factor` times as large, or has one element of that size."""
    loss: torch.Tensor = model(batch(number)).square().mean()
    if factor == LARGEST:
        parameter = next(model.parameters())
        return loss + (local(parameter).flatten()[0] * LARGEST if local(parameter).numel() else 0)
    return factor * loss


def norm_of(model: nn.Module, is_sharded: bool) -> float:
    own = sum(float(local(p.grad).double().square().sum()) for p in model.parameters() if p.grad is not None)
    return math.sqrt(sum(gathered(own))) if is_sharded else math.sqrt(own)


def skipped_steps(
    model: nn.Module, factors: dict[int, float], *, begins: bool = True, tells: bool = False
) -> list[int]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    skipped: list[int] = []
    limit = math.inf
    for number, factor in factors.items():
        if begins:
            isthmus.begin_step(model)
        loss_of(model, number, factor).backward()
        norm = norm_of(model, is_sharded=not isinstance(model, nn.parallel.DistributedDataParallel))
        if norm < limit:
            optimizer.step()
        else:
            skipped.append(number)
            if tells:
                isthmus.skip_step(model)
        limit = min(limit, LIMIT * norm)
        optimizer.zero_grad()
    return skipped


def made(kind: str, **options: Any) -> nn.Module:
    with seed(0):
        return isthmus.prepare(MAKERS[kind](**options), name=kind)  # type: ignore[no-any-return]


# Each kind of model, and each codec that keeps something, whatever holds its unit.
KINDS = [("fsdp2", "tagc"), ("fsdp2", "flat"), ("hsdp", "quant"), ("ddp", "tagc")]


@table
def a_loop_that_tells_nobody_skips_as_many_steps_as_exact_training() -> None:
    with logged() as messages:
        for kind in MAKERS:
            assert skipped_steps(made(kind, codec="none"), STEPS, begins=False) == [5, 9], kind
        for kind, arm in KINDS:
            isthmus.reset_stats()
            assert skipped_steps(made(kind, **ARMS[arm]), STEPS, begins=False) == [5, 9], (kind, arm)
            stats = isthmus.stats()
            assert sum(gathered(stats["codec"]["spikes"])) > 0, (kind, arm)
            assert any("isthmus.skip_step(model)" in note for notes in gathered(stats["notes"]) for note in notes), kind
    told = [message for message in messages if "isthmus.skip_step(model)" in message]
    assert set(gathered(len(told))) <= {0, 1} and any(gathered(len(told))), "a rank that met spikes says so once"


@table
def a_step_that_is_skipped_leaves_no_trace() -> None:
    for kind, arm in KINDS:
        told, without = made(kind, **ARMS[arm]), made(kind, **ARMS[arm])
        before = isthmus.stats()["dropped_residuals"]
        assert skipped_steps(told, {0: NORMAL, 1: NORMAL, 2: NORMAL, 3: SPIKE, 4: NORMAL}, tells=True) == [3], (
            kind,
            arm,
        )
        assert skipped_steps(without, {0: NORMAL, 1: NORMAL, 2: NORMAL, 4: NORMAL}) == [], (kind, arm)
        for parameter, expected in zip(told.parameters(), without.parameters(), strict=True):
            assert torch.equal(local(parameter.detach()), local(expected.detach())), (kind, arm)
        for unit, other in zip(unit_states(told), unit_states(without), strict=True):
            assert torch.equal(unit["residual"], other["residual"]) and unit["step"] == other["step"], (kind, arm)
        assert isthmus.stats()["dropped_residuals"] == before


@table
def a_step_that_did_not_begin_drops_residuals() -> None:
    model = made("fsdp2", **FEEDBACK)
    before = isthmus.stats()["dropped_residuals"]
    assert skipped_steps(model, {0: NORMAL, 1: NORMAL, 3: SPIKE}, begins=False, tells=True) == [3]
    assert not any(unit["residual"].any() for unit in unit_states(model))
    assert isthmus.stats()["dropped_residuals"] == before + len(unit_states(model))
    assert skipped_steps(model, {4: NORMAL, 5: NORMAL}, begins=False) == []


test_skipped_steps = table.in_world()
