"""torch.optim.Muon on FSDP2's DTensors: its steps are collectives over the model's groups, and no gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import isthmus
from support.checks import Table
from support.families import (
    FEATURES,
    INSIDE_A_NODE,
    NO_GRADIENT,
    STEPS,
    WORLD_SIZE,
    batch,
    distance,
    isthmus_groups,
    run_table,
    same_on_all_ranks,
    units_of_groups,
    weights_of,
    world,
)

LAYERS = 2
IN_A_REDUCTION = "inside of FSDP's reduction, but not its own"
#: Makes the optimizer of a model; returns what to call after each backward pass.
Steps = Callable[[nn.Module], Callable[[], None]]
table = Table()


@dataclass
class Trained:
    """What training gave on this rank."""

    moved: torch.Tensor  # all weights, less those before
    units: dict[str, int]  # compressed reductions by unit and collective
    exact: dict[str, int]  # reductions that were exact, by reason


def make() -> nn.Module:
    torch.manual_seed(0)
    wide = 2 * FEATURES  # of a matrix that is no square Muon's products are summed over all dimensions of the mesh
    return nn.Sequential(nn.Linear(FEATURES, wide, bias=False), nn.Linear(wide, FEATURES, bias=False))


def muon(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Muon(parameters, lr=0.05)


def loss_of(model: nn.Module, step: int, rank: int | None = None) -> torch.Tensor:
    inputs = batch(step, rank)
    return distance(model(inputs), inputs)


def optimizer_step(model: nn.Module) -> Callable[[], None]:
    optimizer = muon(model.parameters())

    def step() -> None:
        optimizer.step()
        optimizer.zero_grad()

    return step


def step_in_hooks(model: nn.Module) -> Callable[[], None]:
    """Each parameter has an optimizer, which takes its step in the backward pass as soon as the gradient is there."""
    for parameter in model.parameters():
        optimizer = muon([parameter])

        def step(parameter: nn.Parameter, optimizer: Any = optimizer) -> None:
            optimizer.step()
            parameter.grad = None

        parameter.register_post_accumulate_grad_hook(step)
    return lambda: None


def train(mesh_shape: tuple[int, ...], steps_of: Steps) -> Trained:
    """Over the default group, in a mesh of this shape."""
    names = ("replicate", "shard")[-len(mesh_shape) :]
    mesh = init_device_mesh("cpu", mesh_shape, mesh_dim_names=names)
    model = make()
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    start = weights_of(model)
    step = steps_of(model)
    for number in range(STEPS):
        loss_of(model, number).backward()
        step()
    exact = [isthmus.stats(group)["exact_calls"] for group in isthmus_groups()]
    return Trained(
        moved=weights_of(model) - start,
        units=units_of_groups(),
        exact={reason: sum(each.get(reason, 0) for each in exact) for each in exact for reason in each},
    )


def trained_alone() -> torch.Tensor:
    """How far one process moves all weights with the batches of all ranks."""
    model = make()
    start = weights_of(model)
    step = optimizer_step(model)
    for number in range(STEPS):
        sum(loss_of(model, number, rank) / WORLD_SIZE for rank in range(WORLD_SIZE)).backward()
        step()
    return weights_of(model) - start


def away(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())


def add_check(name: str, mesh_shape: tuple[int, ...], steps_of: Steps, reason: str) -> None:
    """reason: why the collectives between nodes that are Muon's own stay exact."""

    def check(store: dist.Store) -> None:
        collective = "reduce_scatter" if len(mesh_shape) == 1 else "all_reduce"
        runs: dict[str, Trained] = {}
        for mode in ("none", "default"):
            with world(store, mode):
                runs[mode] = train(mesh_shape, steps_of)
                assert same_on_all_ranks(runs[mode].moved)
        assert away(runs["none"].moved, trained_alone()) < 0.05  # torch's Muon computes in bfloat16
        # 4 bits move SGD's weights by .08 and .13; Muon lifts small singular values, and the error in them.
        assert 0.1 < away(runs["default"].moved, runs["none"].moved) < 0.5
        assert runs["default"].units == {f"{layer} {collective}": STEPS for layer in range(LAYERS)}
        assert runs["default"].exact.keys() - {INSIDE_A_NODE} == {reason}

    check.__name__ = name
    table(check)


add_check("sharded", (4,), optimizer_step, NO_GRADIENT)
add_check("sharded_in_hooks", (4,), step_in_hooks, IN_A_REDUCTION)
add_check("hybrid_sharded", (2, 2), optimizer_step, NO_GRADIENT)
add_check("hybrid_sharded_in_hooks", (2, 2), step_in_hooks, IN_A_REDUCTION)


def main(rank: int, world_size: int) -> dict[str, str]:
    return run_table(rank, world_size, table)


test_muon = table.in_world(main, WORLD_SIZE)
