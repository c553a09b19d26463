"""Training whose gradients are whole numbers that do not depend on the weights.

After a while without gradients every residual is empty, and then the weights have the very bits of plain training. A
residual that is added to other elements, with another scale, twice or never leaves other weights.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.parallel import DistributedDataParallel

import isthmus
from isthmus.backends import backend_of
from support.families import (
    gathered,
    isthmus_groups,
    same_on_all_ranks,
    units_of_groups,
    weights_of,
    world,
)

WIDTH = 64
STEPS = 6
EMPTYING_STEPS = 12  # of each kind of step
BOTH = ("first", "second")


class Weights(nn.Module):
    """Two matrices of one size and a longer one. Its loss has gradients that do not depend on them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.zeros(WIDTH, WIDTH))
        self.second = nn.Parameter(torch.zeros(WIDTH, WIDTH))
        self.third = nn.Parameter(torch.zeros(2 * WIDTH, WIDTH))

    def forward(self, salt: int | None, used: tuple[str, ...]) -> torch.Tensor:
        loss = torch.zeros(())
        for name in used:
            weight = getattr(self, name)
            loss = loss + (weight * whole_numbers(weight.shape, salt, name).to(weight.dtype)).sum()
        return loss


class Pair(nn.Module):
    """Two units of equal sizes, so that mixing them up is possible."""

    def __init__(self) -> None:
        super().__init__()
        self.left = Weights()
        self.right = Weights()

    def forward(self, salt: int | None, used: tuple[str, ...]) -> torch.Tensor:
        loss: torch.Tensor = self.left(salt, used) + self.right(None if salt is None else salt + 500, used)
        return loss


def whole_numbers(shape: torch.Size, salt: int | None, name: str) -> torch.Tensor:
    """Return this rank's gradient at a step; zeros without a step."""
    if salt is None:
        return torch.zeros(shape)
    generator = torch.Generator().manual_seed(1000 * salt + 100 * len(name) + dist.get_rank())
    return torch.randint(-4, 5, tuple(shape), generator=generator).float()


Backward = Callable[[nn.Module, int | None, tuple[str, ...]], None]


def backward(model: nn.Module, salt: int | None, used: tuple[str, ...]) -> None:
    model(salt, used).backward()


def backward_twice(model: nn.Module, salt: int | None, used: tuple[str, ...]) -> None:
    """Accumulates: the first micro-batch has gradients of one parameter, and is not reduced."""
    model.set_requires_gradient_sync(False)
    backward(model, None if salt is None else salt + 50, used[:1])
    model.set_requires_gradient_sync(True)
    backward(model, salt, used)


def final_weights(
    wrap: Callable[[nn.Module], nn.Module],
    uses: tuple[tuple[str, ...], ...],
    *,
    prepared: bool,
    step: Backward,
    before_step: Callable[[nn.Module, int], None],
) -> torch.Tensor:
    """Train, empty all residuals, and return the weights. `uses`: by turns, which parameters have a gradient."""
    model = wrap(Pair())
    if prepared:
        isthmus.prepare(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for number in range(STEPS + EMPTYING_STEPS * len(uses)):
        before_step(model, number)
        step(model, number if number < STEPS else None, uses[number % len(uses)])
        optimizer.step()
        optimizer.zero_grad()
        if number == STEPS - 1 and isthmus_groups():
            assert any(gathered(any(map(any_left, states())))), "nothing was held back"
    left = gathered([state["name"] for state in states() if any_left(state)])
    assert not any(left), f"not empty yet: {left}"
    return weights_of(model)


def states() -> list[dict[str, Any]]:
    return [state for group in isthmus_groups() for state in backend_of(group).unit_states()]


def any_left(state: dict[str, Any]) -> bool:
    residuals = [state["residual"], state["result_residual"]]
    return any(residual is not None and bool(residual.any()) for residual in residuals)


def conserves(
    store: dist.Store,
    wrap: Callable[[nn.Module], nn.Module],
    uses: tuple[tuple[str, ...], ...] = ((*BOTH, "third"),),
    *,
    prepared: bool = True,
    step: Backward = backward,
    before_step: Callable[[nn.Module, int], None] = lambda model, number: None,
) -> dict[str, int]:
    """Hold the weights after compressed training against plain ones, bit by bit; return the units."""
    run = functools.partial(final_weights, wrap, uses, step=step, before_step=before_step)
    with world(store, "gloo"):
        plain = run(prepared=False)
    with world(store, "tagc"):
        compressed = run(prepared=prepared)
        units = units_of_groups()
        alike = same_on_all_ranks(compressed), same_on_all_ranks(units)
    assert alike == (True, True)
    assert units
    difference = (compressed - plain).abs()
    assert torch.equal(compressed, plain), f"{int((difference > 0).sum())} differ, by up to {float(difference.max())}"
    assert bool(plain.any())
    return units


def fsdp2(model: Any, **settings: Any) -> nn.Module:
    fully_shard(model.left, **settings)
    fully_shard(model.right, **settings)
    return fully_shard(model, **settings)


def hsdp(model: nn.Module) -> nn.Module:
    return fsdp2(model, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))


def fsdp1(model: nn.Module, **settings: Any) -> nn.Module:
    return FullyShardedDataParallel(
        model, auto_wrap_policy=ModuleWrapPolicy({Weights, nn.Linear}), device_id=torch.device("cpu"), **settings
    )


def ddp(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model)
