"""Code that Inductor generated trains over Isthmus as the plain model does over Gloo: DDP and SimpleFSDP.

FSDP2 keeps its collectives out of graphs: test_others.py.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from python.training.wraps import ddp_family, simple_fsdp
from support.checks import Table
from support.families import WORLD_SIZE, add_family, run_table

table = Table()


def compiled(model: nn.Module, **settings: Any) -> nn.Module:
    """Over Isthmus: compiling takes far longer than training, and the run over Gloo is what others are held against."""
    if dist.get_backend() != "gloo":
        model.compile(backend="inductor", **settings)
    return model


def ddp(model: nn.Module) -> nn.Module:
    return compiled(DistributedDataParallel(model))


def compiled_simple_fsdp(model: nn.Module) -> nn.Module:
    # With shapes that may change, Inductor of torch 2.11 generates no code for it, over Gloo neither.
    return compiled(simple_fsdp(model), fullgraph=True, dynamic=False)


FAMILIES = {
    "ddp": ddp_family(ddp, modes=("prepared",)),
    "simple_fsdp": ddp_family(compiled_simple_fsdp, modes=("backward",)),
}
for name, family in FAMILIES.items():
    add_family(table, name, family)


def main(rank: int, world_size: int) -> dict[str, str]:
    warnings.simplefilter("ignore")
    return run_table(rank, world_size, table)


test_family = table.in_world(main, WORLD_SIZE, env={"TORCHINDUCTOR_COMPILE_THREADS": "1"})
