"""Residuals follow a loss scale that changes; a step that overflows is skipped and counted."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

import isthmus
from python.training.conservation import BOTH, EMPTYING_STEPS, STEPS, WIDTH, Pair, ddp, fsdp1, fsdp2, hsdp, states
from support.checks import Table, World
from support.families import (
    WORLD_SIZE,
    isthmus_groups,
    native,
    run_table,
    same_on_all_ranks,
    weights_of,
    world,
)

pytestmark = pytest.mark.processes
table = Table()


def scaled_weights(wrap: Callable[[nn.Module], nn.Module], make_scaler: Callable[[], Any], prepared: bool) -> Any:
    """Train with a loss scale that doubles again and again, and return the weights and the last scale."""
    model = wrap(Pair())
    scaler = make_scaler()
    if prepared:
        isthmus.prepare(model, scaler=scaler)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for number in range(STEPS + EMPTYING_STEPS):
        loss = model(number if number < STEPS else None, (*BOTH, "third"))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return weights_of(model), scaler.get_scale()


SCALERS: dict[str, tuple[Callable[[nn.Module], nn.Module], Any]] = {
    "fsdp2": (fsdp2, torch.amp.GradScaler),
    "hsdp": (hsdp, torch.amp.GradScaler),
    "fsdp1": (fsdp1, ShardedGradScaler),
    "ddp": (ddp, torch.amp.GradScaler),
}


@table
def a_loss_scale_that_grows_conserves(store: dist.Store) -> None:
    for name, (wrap, kind) in SCALERS.items():
        make_scaler = functools.partial(kind, "cpu", init_scale=2.0, growth_interval=2)
        with world(store, "gloo"):
            plain, plain_scale = scaled_weights(wrap, make_scaler, False)
        with world(store, "tagc"):
            weights, scale = scaled_weights(wrap, make_scaler, True)
            stats = [isthmus.stats(group) for group in isthmus_groups()]
            alike = same_on_all_ranks(weights)
        assert alike, name
        assert scale == plain_scale == 2.0 ** (1 + (STEPS + EMPTYING_STEPS) // 2), name
        assert sum(entry["compressed_calls"] for entry in stats) > 0, name
        assert torch.equal(weights, plain), name


class Overflowing(nn.Module):
    """Layers in half precision whose loss is not finite on one rank at one step."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.left = nn.Linear(WIDTH, WIDTH)
        self.right = nn.Linear(WIDTH, WIDTH)

    def forward(self, number: int) -> torch.Tensor:
        inputs = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(dist.get_rank()))
        loss = (self.right(torch.tanh(self.left(inputs))).float() - inputs).square().mean()
        return loss * torch.inf if number == 3 and dist.get_rank() == 1 else loss


def overflow(wrap: Callable[[nn.Module], nn.Module], make_scaler: Callable[[], Any]) -> None:
    """Every rank skips the step that overflows, once; the statistics say so, and training goes on."""
    model = wrap(Overflowing())
    scaler = make_scaler()
    isthmus.prepare(model, scaler=scaler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses, scales = [], []
    for number in range(8):
        before = weights_of(model)
        loss = model(number)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scales.append(scaler.get_scale())
        losses.append(float(loss.detach()))
        after = weights_of(model)
        assert torch.equal(before, after) == (number == 3), number
        assert bool(after.isfinite().all()), number
    assert scales == [1024.0] * 3 + [512.0] * 5
    assert same_on_all_ranks(after)
    assert losses[-1] < losses[0]
    compressing = [isthmus.stats(group) for group in isthmus_groups() if native(group).unit_states()]
    assert compressing
    for stats in compressing:
        assert stats["skipped_steps"] == 1
        # Blocks that are not finite take nothing out of the residual; the other node sent what then was thrown away.
        # Where there is no residual, all that crosses counts as sent.
        sent = dist.get_rank() >= 2 or stats["residual_bytes"] == 0
        assert (stats["skipped_elements"] > 0) == sent, stats["skipped_elements"]
    for state in states():
        residual = state["residual"]
        assert residual is None or bool(residual.isfinite().all()), state["name"]


@table
def a_step_that_overflows_is_skipped_and_counted(store: dist.Store) -> None:
    half = MixedPrecisionPolicy(param_dtype=torch.float16)
    scalers = {**SCALERS, "fsdp2": (functools.partial(fsdp2, mp_policy=half), torch.amp.GradScaler)}
    cases = [(name, "tagc") for name in scalers] + [(name, "default") for name in ("fsdp2", "hsdp")]
    for name, codec in cases:
        wrap, kind = scalers[name]
        make_scaler = functools.partial(kind, "cpu", init_scale=1024.0, growth_interval=100)
        with world(store, codec):
            overflow(wrap, make_scaler)


def main(rank: int, world_size: int) -> dict[str, str]:
    warnings.simplefilter("ignore", FutureWarning)
    return run_table(rank, world_size, table)


@pytest.fixture(scope="module")
def results() -> World:
    return World(main, WORLD_SIZE)


@pytest.mark.parametrize("name", table.names)
def test_loss_scale(results: World, name: str) -> None:
    results.check(name)
