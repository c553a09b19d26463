"""torch.optim.Muon on FSDP2's DTensors: its steps are collectives over the model's groups, and no gradients."""

from dataclasses import dataclass
from functools import partial

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
STEPS = 5
EIGHT_BITS = {"ISTHMUS_BITS": "8"}  # docs/choosing.md: what Muon should have


@dataclass
class Trained:
    moved: torch.Tensor  # all weights, less those before
    units: dict[str, int]  # compressed reductions by unit and collective
    exact: dict[str, int]  # reductions that were exact, by reason


def make() -> nn.Module:
    torch.manual_seed(0)
    wide = 2 * FEATURES  # of a matrix that is no square Muon's products are summed over all dimensions of the mesh
    return nn.Sequential(nn.Linear(FEATURES, wide, bias=False), nn.Linear(wide, FEATURES, bias=False))


def loss_of(model: nn.Module, step: int, rank: int | None = None) -> torch.Tensor:
    inputs = batch(step, rank)
    return distance(model(inputs), inputs)


def step(loss: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def train(mesh_shape: tuple[int, ...]) -> Trained:
    names = ("replicate", "shard")[-len(mesh_shape) :]
    mesh = init_device_mesh("cpu", mesh_shape, mesh_dim_names=names)
    model = make()
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    start = weights_of(model)
    optimizer = torch.optim.Muon(model.parameters(), lr=0.05)
    for number in range(STEPS):
        step(loss_of(model, number), optimizer)
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
    optimizer = torch.optim.Muon(model.parameters(), lr=0.05)
    for number in range(STEPS):
        step(sum(loss_of(model, number, rank) / WORLD_SIZE for rank in range(WORLD_SIZE)), optimizer)
    return weights_of(model) - start


def away(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())


def check(mesh_shape: tuple[int, ...], store: dist.Store) -> None:
    collective = "reduce_scatter" if len(mesh_shape) == 1 else "all_reduce"
    runs: dict[str, Trained] = {}
    for run, mode, env in (("none", "none", {}), ("default", "default", {}), ("8 bits", "default", EIGHT_BITS)):
        with world(store, mode, env):
            runs[run] = train(mesh_shape)
            assert same_on_all_ranks(runs[run].moved)
    assert away(runs["none"].moved, trained_alone()) < 0.02  # torch's Muon computes in bfloat16
    # 4 bits move SGD's weights by .08 and .13; Muon lifts small singular values, and the error in them.
    assert 0.1 < away(runs["default"].moved, runs["none"].moved) < (0.25 if len(mesh_shape) == 1 else 0.35)
    assert 0.01 < away(runs["8 bits"].moved, runs["none"].moved) < 0.08
    assert runs["default"].units == {f"{layer} {collective}": STEPS for layer in range(LAYERS)}
    # The collectives between nodes that are Muon's own stay exact.
    assert runs["default"].exact.keys() - {INSIDE_A_NODE} == {NO_GRADIENT}


table = Table()
table.checks = {"sharded": partial(check, (4,)), "hybrid_sharded": partial(check, (2, 2))}


test_muon = table.in_world(partial(run_table, table=table), WORLD_SIZE)
