"""DDP, SimpleFSDP, compiled models and torch's modes train over Isthmus as over Gloo."""

import functools
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import isthmus
from python.training.wraps import accumulate_without_sync, backward_and_finalize, ddp, ddp_family, fsdp2, simple_fsdp
from support.checks import Table
from support.families import (
    STEPS,
    WORLD_SIZE,
    Family,
    Model,
    batch,
    check_against,
    check_family,
    distance,
    run_table,
    same_on_all_ranks,
    train,
    units_of_groups,
    weights_of,
    world,
)

table = Table()


class Skipping(Model):
    """Leaves out a block at every step."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        features = self.first(features)
        for block in list(self.blocks)[1:]:
            features = block(features)
        output: torch.Tensor = self.last(features)
        return output


def zero(parameters: Any, lr: float) -> torch.optim.Optimizer:
    """Optimizer state on one rank each, which sends what it updated to the others."""
    return ZeroRedundancyOptimizer(parameters, torch.optim.SGD, lr=lr)


def finalized_by_hand(model: nn.Module) -> nn.Module:
    model = ddp(model)
    model.require_manual_backward_finalization = True
    return model


def replicated(model: Any) -> nn.Module:
    """The new DDP, which is FSDP2 inside."""
    mesh = init_device_mesh("cpu", (WORLD_SIZE,), mesh_dim_names=("replicate",))
    for block in model.blocks:
        replicate(block, mesh=mesh)
    return replicate(model, mesh=mesh)


DDP_FAMILIES = {
    "ddp": ddp_family(modes=("default", "prepared", "backward")),
    "ddp_unused_parameters": ddp_family(functools.partial(ddp, find_unused_parameters=True), make=Skipping),
    "ddp_bucket_views": ddp_family(functools.partial(ddp, gradient_as_bucket_view=True)),
    "ddp_accumulated": ddp_family(backward=accumulate_without_sync),
    "ddp_zero_optimizer": ddp_family(optimizer=zero),
    "simple_fsdp": ddp_family(simple_fsdp, gathers=True, modes=("prepared", "prepared delta")),
    "replicated": Family(replicated, collectives=("all_reduce",), gathers=False),
}

if hasattr(DistributedDataParallel, "finalize_backward"):  # torch 2.11 lacks it
    DDP_FAMILIES["ddp_finalized_by_hand"] = ddp_family(finalized_by_hand, backward=backward_and_finalize)


@table
def ddp_joins_ranks_with_uneven_inputs(store: dist.Store) -> None:
    """Ranks without inputs reduce zeros, from outside of any backward pass; their buckets carry the same tags."""
    with world(store, "prepared"):
        model: Any = isthmus.prepare(ddp(Model()))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with model.join():
            for number in range(STEPS + dist.get_rank()):
                inputs = batch(number)
                distance(model(inputs), inputs).backward()
                optimizer.step()
                optimizer.zero_grad()
        alike = same_on_all_ranks(weights_of(model)), same_on_all_ranks(units_of_groups())
        compressed = isthmus.stats()["compressed_calls"]
    assert alike == (True, True)
    assert compressed > 0


# --- Modes of torch ---


def compiled(model: Any, **settings: Any) -> nn.Module:
    """Over Isthmus: compiling takes far longer than training, and the run over Gloo is what others are held against."""
    if dist.get_backend() != "gloo":
        model.compile(**settings)
    return model  # type: ignore[no-any-return]


def fsdp2_of_compiled_blocks(model: Any) -> nn.Module:
    for block in model.blocks:
        compiled(block, backend="aot_eager", fullgraph=True)
    return fsdp2(model)


def compiled_simple_fsdp(model: nn.Module) -> nn.Module:
    # With shapes that may change, Inductor of torch 2.11 generates no code for it, over Gloo neither.
    return compiled(simple_fsdp(model), backend="inductor", fullgraph=True, dynamic=False)


def compiled_ddp(model: nn.Module) -> nn.Module:
    return compiled(DistributedDataParallel(model), backend="aot_eager")


COMPILED_FAMILIES = {
    "fsdp2_of_compiled_blocks": Family(fsdp2_of_compiled_blocks),
    "compiled_ddp": ddp_family(compiled_ddp),
    "compiled_simple_fsdp": ddp_family(compiled_simple_fsdp, modes=("backward",)),
}


@table
def debug_level_detail(store: dist.Store) -> None:
    """Torch wraps every backend then, and checks each call on all ranks. Isthmus alone is run so."""
    for family in (Family(fsdp2, clips=False), ddp_family(clips=False)):
        with world(store, "gloo"):
            plain = train(family, "gloo")
        dist.set_debug_level(dist.DebugLevel.DETAIL)
        try:
            check_against(plain, family, store)
        finally:
            dist.set_debug_level(dist.DebugLevel.OFF)


for name, family in (DDP_FAMILIES | COMPILED_FAMILIES).items():
    table.checks[name] = functools.partial(check_family, family)


def main(rank: int, world_size: int) -> dict[str, str]:
    warnings.simplefilter("ignore")
    return run_table(rank, world_size, table)


test_family = table.in_world(main, WORLD_SIZE, env={"TORCHINDUCTOR_COMPILE_THREADS": "1"})
