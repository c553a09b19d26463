"""The FSDP family trains on Isthmus: as over Gloo with codec none, and compressed where gradients cross nodes."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.tensor import Shard

from python.training.wraps import accumulate_without_sync, fsdp1, fsdp2, hsdp
from support.checks import Table
from support.families import (
    BLOCKS,
    FEATURES,
    INSIDE_A_NODE,
    STEPS,
    UNITS,
    WORLD_SIZE,
    Family,
    Model,
    Training,
    check_family,
    run_table,
)

table = Table()


# --- FSDP2 ---


def mixed_precision(parameters: torch.dtype) -> Any:
    return functools.partial(fsdp2, mp_policy=MixedPrecisionPolicy(param_dtype=parameters))


def for_each_unit(method: str, *arguments: Any) -> Any:
    """FSDP2, and then a call of one of its methods on each unit."""

    def wrap(model: nn.Module) -> nn.Module:
        fsdp2(model)
        for module in [*model.blocks, model]:
            getattr(module, method)(*arguments)
            if dist.get_backend() == "gloo":  # which has no PREMUL_SUM
                module.set_force_sum_reduction_for_comms(True)
        return model

    return wrap


def two_blocks_in_one_unit(model: nn.Module) -> nn.Module:
    fully_shard([model.blocks[0], model.blocks[1]])
    fully_shard(model.blocks[2])
    return fully_shard(model)


def sharded_by_columns(model: nn.Module) -> nn.Module:
    return fsdp2(model, shard_placement_fn=lambda parameter: Shard(parameter.ndim - 1))


def partly_frozen(model: nn.Module) -> nn.Module:
    """A whole unit, a bias in a unit, and a weight in another."""
    for parameter in (*model.blocks[1].parameters(), model.blocks[2].linear.bias, model.first.weight):
        parameter.requires_grad_(False)
    return fsdp2(model)


def with_prefetching(model: nn.Module) -> nn.Module:
    fsdp2(model)
    model.set_modules_to_forward_prefetch(list(model.blocks))
    model.blocks[2].set_modules_to_backward_prefetch([model.blocks[1], model.blocks[0]])
    return model


def tied() -> nn.Module:
    model = Model()
    model.last.weight = model.first.weight
    return model


def accumulate(training: Training, number: int) -> torch.Tensor:
    """Two micro-batches, of which the first is not reduced."""
    training.model.set_requires_gradient_sync(False)
    training.step(number)
    training.model.set_requires_gradient_sync(True)
    return training.step(number + 1)


def accumulate_shards(training: Training, number: int) -> torch.Tensor:
    """HSDP reduces each micro-batch within the node, and only the last one between nodes."""
    training.model.set_requires_all_reduce(False)
    training.step(number)
    training.model.set_requires_all_reduce(True)
    return training.step(number + 1)


def hsdp_across_nodes(model: nn.Module) -> nn.Module:
    """Shards along the rails: reduce-scatters are compressed in subgroups, and replicas are of one node."""
    return fsdp2(model, mesh=DeviceMesh("cpu", [[0, 2], [1, 3]], mesh_dim_names=("replicate", "shard")))


def hsdp_family(*, shard_reductions: int = len(UNITS), **settings: Any) -> Family:
    """All-reduces are compressed; what happens within a node, clipping included, is exact and says so."""
    return Family(
        hsdp,
        collectives=("all_reduce",),
        exact={INSIDE_A_NODE: STEPS * (shard_reductions + 1)},
        gathers=False,
        **settings,
    )


BFLOAT16, FLOAT16 = 0.02, 0.005
ALL = ("none", "default", "prepared", "tagc")
FSDP2_FAMILIES = {
    "fsdp2": Family(fsdp2, modes=ALL),
    "bfloat16_parameters": Family(mixed_precision(torch.bfloat16), rounding=BFLOAT16, modes=("none", "default")),
    "float16_parameters": Family(mixed_precision(torch.float16), rounding=FLOAT16, modes=("none", "default")),
    "kept_after_forward": Family(functools.partial(fsdp2, reshard_after_forward=False)),
    "resharded_to_two_ranks_after_forward": Family(functools.partial(fsdp2, reshard_after_forward=2)),
    "gradient_divide_factor": Family(for_each_unit("set_gradient_divide_factor", 2.0)),
    "sums_alone": Family(for_each_unit("set_force_sum_reduction_for_comms", True)),
    "prefetched": Family(with_prefetching),
    "accumulated": Family(fsdp2, backward=accumulate),
    "tied_weights": Family(fsdp2, make=tied),
    "partly_frozen": Family(
        partly_frozen, units=[unit for unit in UNITS if unit != "blocks.1"], modes=("default", "prepared")
    ),
    "offloaded": Family(functools.partial(fsdp2, offload_policy=CPUOffloadPolicy(pin_memory=False))),
    "two_blocks_in_one_unit": Family(
        two_blocks_in_one_unit, units=["root", "blocks.0, blocks.1", "blocks.2"], modes=("default", "prepared")
    ),
    "sharded_by_columns": Family(sharded_by_columns),
    "hsdp": hsdp_family(modes=ALL),
    "hsdp_accumulated": hsdp_family(backward=accumulate_shards, shard_reductions=2 * len(UNITS)),
    "hsdp_across_nodes": Family(hsdp_across_nodes, exact={INSIDE_A_NODE: STEPS * len(UNITS)}, clips=False),
}


# --- FSDP1 ---


def fsdp1_units(dtype: str = "float32", shards: int = 1) -> list[str]:
    """Return the names that units of FSDP1 get by size and order: the first that is reduced comes first."""
    layer = FEATURES * (FEATURES + 1) // shards
    blocks = [f"fsdp1:{dtype}:{layer}{suffix}" for suffix in ("", *(f" ({i + 1})" for i in range(1, BLOCKS)))]
    return [*blocks, f"fsdp1:{dtype}:{2 * layer}"]


def fsdp1_family(wrap: Any = fsdp1, /, **settings: Any) -> Family:
    """A family whose units have names only if they are prepared."""
    return Family(**{"wrap": wrap, "units": fsdp1_units(), "prepared_units": UNITS, **settings})


FSDP1_FAMILIES = {
    "fsdp1": fsdp1_family(modes=("none", "default", "prepared", "prepared tagc")),
    "fsdp1_bfloat16": fsdp1_family(
        functools.partial(
            fsdp1, mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
        ),
        units=fsdp1_units(dtype="bfloat16"),
        rounding=BFLOAT16,
        modes=("none", "default"),
    ),
    "fsdp1_accumulated": fsdp1_family(backward=accumulate_without_sync),
    "fsdp1_no_shard": fsdp1_family(
        functools.partial(fsdp1, sharding_strategy=ShardingStrategy.NO_SHARD),
        collectives=("all_reduce",),
        gathers=False,
    ),
}


for name, family in (FSDP2_FAMILIES | FSDP1_FAMILIES).items():
    table.checks[name] = functools.partial(check_family, family)


def main(rank: int, world_size: int) -> dict[str, str]:
    return run_table(rank, world_size, table)


test_family = table.in_world(main, WORLD_SIZE)
