"""Copies of parameters under tensor parallelism stay equal, under every wrapper."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.parallel.ddp import _pre_dp_module_transform
from torch.nn.parallel import DistributedDataParallel

import isthmus
from python.units.identity import KEEPING, MAY_HOLD_COPIES, REPLICAS
from support.checks import Table, World

pytestmark = pytest.mark.processes
table, table_of_worlds = Table(), Table()
WIDTH = 512


class Parallel(nn.Module):
    """Layers that are split over "tp", and some that every rank of it has a copy of."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.LayerNorm(WIDTH)
        self.copied = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 64, bias=False)
        self.down = nn.Linear(64, WIDTH, bias=False)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.down(torch.tanh(self.up(self.copied(self.norm(features)))))  # type: ignore[no-any-return]


def parallel(tp: DeviceMesh) -> nn.Module:
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel(output_layouts=Replicate())}
    return parallelize_module(Parallel(), tp, plan)


@contextmanager
def mesh_2d(**options: Any) -> Iterator[DeviceMesh]:
    """Make a mesh whose "dp" crosses between nodes, and whose groups have these options."""
    default = isthmus.Options(nodes="2x2", min_elements=0, **options)
    yield init_device_mesh(
        "cpu", (2, 2), mesh_dim_names=("dp", "tp"), backend_override={0: ("isthmus", default), 1: ("isthmus", default)}
    )


def fsdp1_in_two_units(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    policy = ModuleWrapPolicy({nn.LayerNorm, nn.Linear})
    return FullyShardedDataParallel(
        model, device_mesh=mesh["dp"], device_id=torch.device("cpu"), auto_wrap_policy=policy, use_orig_params=True
    )


def fsdp1_in_one_unit(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return FullyShardedDataParallel(model, device_mesh=mesh["dp"], device_id=torch.device("cpu"), use_orig_params=True)


def fsdp2_in_two_units(model: Any, mesh: DeviceMesh) -> nn.Module:
    fully_shard([model.norm, model.copied], mesh=mesh["dp"])
    return fully_shard(model, mesh=mesh["dp"])


def ddp_of_parts(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    _pre_dp_module_transform(model)
    return DistributedDataParallel(model, process_group=mesh.get_group("dp"))


def prepared(wrap: Callable[[nn.Module, DeviceMesh], nn.Module]) -> Callable[[nn.Module, DeviceMesh], nn.Module]:
    return lambda model, mesh: isthmus.prepare(wrap(model, mesh))


def drift_of_copies(wrap: Callable[[nn.Module, DeviceMesh], nn.Module], mesh: DeviceMesh) -> float:
    """Train; return how far the copies on the ranks of "tp" are from each other at most."""
    model = wrap(parallel(mesh["tp"]), mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(12):
        data_rank = mesh["dp"].get_local_rank()
        inputs = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(10 * step + data_rank))
        (model(inputs) - inputs.flip(1)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    copies = []
    with FullyShardedDataParallel.summon_full_params(model) if wraps_fsdp1(model) else torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or "copied" in name:
                whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
                copies.append(whole.detach().flatten().clone())
    everyones: list[Any] = [None] * 2
    dist.all_gather_object(everyones, torch.cat(copies), group=mesh.get_group("tp"))
    return float((everyones[0] - everyones[1]).abs().max())


def wraps_fsdp1(model: nn.Module) -> bool:
    return isinstance(model, FullyShardedDataParallel)


def check_copies(wrap: Callable[[nn.Module, DeviceMesh], nn.Module], exact: str | None = None, **options: Any) -> None:
    with mesh_2d(**options) as mesh:
        drift = drift_of_copies(wrap, mesh)
        statistics = isthmus.stats(mesh.get_group("dp"))
    assert drift == 0, drift
    if exact is None:
        assert statistics["compressed_calls"] > 0, statistics["exact_calls"]
    else:
        assert statistics["exact_calls"].get(exact, 0) >= 12, statistics["exact_calls"]


@table
def copies_agree_under_fsdp1() -> None:
    check_copies(fsdp1_in_two_units)
    check_copies(fsdp1_in_two_units, **KEEPING["tagc"])
    check_copies(prepared(fsdp1_in_two_units))


@table
def copies_beside_parts_are_exact_under_fsdp1() -> None:
    check_copies(fsdp1_in_one_unit, REPLICAS)
    check_copies(prepared(fsdp1_in_one_unit), REPLICAS, **KEEPING["tagc"])


@table
def copies_agree_under_fsdp2() -> None:
    check_copies(fsdp2_in_two_units)
    check_copies(prepared(fsdp2_in_two_units))
    check_copies(prepared(fsdp2_in_two_units), **KEEPING["tagc"])
    check_copies(prepared(lambda model, mesh: fully_shard(model, mesh=mesh["dp"])), REPLICAS)


@table
def copies_agree_under_ddp() -> None:
    check_copies(ddp_of_parts, MAY_HOLD_COPIES, gradients="backward")
    check_copies(prepared(ddp_of_parts), REPLICAS)
    check_copies(prepared(ddp_of_parts), REPLICAS, **KEEPING["tagc"])


def main(rank: int, world_size: int) -> dict[str, str]:
    return table.run_in_world()


@pytest.fixture(scope="module")
def results() -> World:
    return World(main, 4)


@pytest.mark.parametrize("name", table.names)
def test_copies(results: World, name: str) -> None:
    results.check(name)
