"""Code that Inductor generated trains over Isthmus as the plain model does over Gloo: FSDP2, DDP and SimpleFSDP."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from python.training.wraps import ddp_family, simple_fsdp
from support.checks import Table, World
from support.families import WORLD_SIZE, Family, add_family, run_table

pytestmark = pytest.mark.processes

table = Table()


def compiled(model: nn.Module, **settings: Any) -> nn.Module:
    """Over Isthmus: compiling takes far longer than training, and the run over Gloo is what others are held against."""
    if dist.get_backend() != "gloo":
        model.compile(backend="inductor", **settings)
    return model


def fsdp2(model: nn.Module) -> nn.Module:
    for block in model.blocks:
        fully_shard(block)
    return compiled(fully_shard(model))


def ddp(model: nn.Module) -> nn.Module:
    return compiled(DistributedDataParallel(model))


def compiled_simple_fsdp(model: nn.Module) -> nn.Module:
    # With shapes that may change, Inductor of torch 2.11 generates no code for it, over Gloo neither.
    return compiled(simple_fsdp(model), fullgraph=True, dynamic=False)


FAMILIES = {
    "fsdp2": Family(fsdp2, modes=("prepared",)),
    "ddp": ddp_family(ddp, modes=("prepared",)),
    "simple_fsdp": ddp_family(compiled_simple_fsdp, modes=("backward",)),
}
for name, family in FAMILIES.items():
    add_family(table, name, family)


def main(rank: int, world_size: int) -> dict[str, str]:
    warnings.simplefilter("ignore")
    return run_table(rank, world_size, table)


@pytest.fixture(scope="module")
def results() -> World:
    return World(main, WORLD_SIZE, env={"TORCHINDUCTOR_COMPILE_THREADS": "1"})


@pytest.mark.parametrize("name", table.names)
def test_family(results: World, name: str) -> None:
    results.check(name)
