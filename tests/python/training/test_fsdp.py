"""The FSDP family trains on Isthmus: as over Gloo with codec none, and compressed where gradients cross nodes."""

import contextlib
import functools
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.tensor import Shard

from python.training.wraps import accumulate_without_sync, backward_and_finalize, fsdp1, fsdp2, hsdp
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


def finalized_by_hand(model: nn.Module) -> nn.Module:
    fsdp2(model)
    model.set_manual_backward_finalization(True)
    return model


def with_a_group_for_reductions(model: nn.Module) -> nn.Module:
    fsdp2(model)
    model.set_separate_reduce_scatter_group()
    return model


class OneUsed(Model):
    """Ranks use different blocks: each leaves out the one with its number."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        features = self.first(features)
        for index, block in enumerate(self.blocks):
            features = block(features) if index != dist.get_rank() else features
        output: torch.Tensor = self.last(features)
        return output


def with_unused_parameters(model: nn.Module) -> nn.Module:
    """One unit: ranks that call other units hang in their gathers, whatever the backend."""
    fully_shard(model)
    model.set_reduce_scatter_unused_params(True)
    return model


class Failure(Exception):
    pass


def fail_once(training: Training, number: int) -> torch.Tensor:
    """The forward pass of one step fails on all ranks in its middle, and is begun again."""

    def fail(*_: Any) -> None:
        raise Failure

    if number == 2:
        hook = training.model.blocks[1].register_forward_hook(fail)
        with contextlib.suppress(Failure):
            training.step(number)
        hook.remove()
        training.model.reset_iter_state()
    return training.step(number)


def head_in_a_unit(model: nn.Module) -> nn.Module:
    """As torchtitan does for a loss in chunks: the last layers are one unit, which each chunk calls."""
    for block in model.blocks[:-1]:
        fully_shard(block)
    fully_shard([model.blocks[-1], model.last], reshard_after_forward=False)
    return fully_shard(model)


class Chunks(Model):
    def forward(self, features: torch.Tensor) -> torch.Tensor:
        hidden = self.first(features)
        for block in self.blocks:
            hidden = block(hidden)
        return torch.cat([self.last(chunk) for chunk in hidden.chunk(4)])


def hsdp_across_nodes(model: nn.Module) -> nn.Module:
    """Shards along the rails: reduce-scatters are compressed in subgroups, and replicas are of one node."""
    return fsdp2(model, mesh=DeviceMesh("cpu", [[0, 2], [1, 3]], mesh_dim_names=("replicate", "shard")))


def hsdp_family(*, shard_reductions: int = len(UNITS), steps: int = STEPS, **settings: Any) -> Family:
    """All-reduces are compressed; what happens within a node, clipping included, is exact and says so."""
    return Family(
        hsdp,
        collectives=("all_reduce",),
        exact={INSIDE_A_NODE: steps * (shard_reductions + 1)},
        steps=steps,
        gathers=False,
        **settings,
    )


BFLOAT16, FLOAT16 = 0.02, 0.005
ALL = ("none", "default", "delta", "tagc")  # prepared: tests/python/model/test_automatic.py has the same bits
BOTH = ("default", "delta")
FSDP2_FAMILIES = {
    "fsdp2": Family(fsdp2, modes=ALL),
    "bfloat16_parameters": Family(mixed_precision(torch.bfloat16), rounding=BFLOAT16, modes=("none", *BOTH)),
    "float16_parameters": Family(mixed_precision(torch.float16), rounding=FLOAT16, modes=("none", "default")),
    "kept_after_forward": Family(functools.partial(fsdp2, reshard_after_forward=False), modes=BOTH),
    "resharded_to_two_ranks_after_forward": Family(functools.partial(fsdp2, reshard_after_forward=2), modes=BOTH),
    "gradient_divide_factor": Family(for_each_unit("set_gradient_divide_factor", 2.0)),
    "sums_alone": Family(for_each_unit("set_force_sum_reduction_for_comms", True)),
    "prefetched": Family(with_prefetching, modes=BOTH),
    "accumulated": Family(fsdp2, backward=accumulate),
    "tied_weights": Family(fsdp2, make=tied),
    "partly_frozen": Family(partly_frozen, units=[unit for unit in UNITS if unit != "blocks.1"], modes=BOTH, steps=5),
    "offloaded": Family(functools.partial(fsdp2, offload_policy=CPUOffloadPolicy(pin_memory=False))),
    "two_blocks_in_one_unit": Family(two_blocks_in_one_unit, units=["root", "blocks.0, blocks.1", "blocks.2"]),
    "sharded_by_columns": Family(sharded_by_columns),
    "head_in_chunks": Family(
        head_in_a_unit, make=Chunks, units=["root", "blocks.0", "blocks.1", "blocks.2, last"], modes=BOTH
    ),
    "hsdp": hsdp_family(modes=("none", "default"), steps=5),
    "hsdp_accumulated": hsdp_family(backward=accumulate_shards, shard_reductions=2 * len(UNITS)),
    "hsdp_across_nodes": Family(hsdp_across_nodes, exact={INSIDE_A_NODE: STEPS * len(UNITS)}, clips=False, modes=BOTH),
}


# What torch 2.11 lacks, by its method of FSDPModule.
CONTROLS = {
    "set_manual_backward_finalization": Family(finalized_by_hand, backward=backward_and_finalize),
    "set_separate_reduce_scatter_group": Family(with_a_group_for_reductions, modes=("default", "attached")),
    "set_reduce_scatter_unused_params": Family(with_unused_parameters, make=OneUsed, units=["root"]),
    "reset_iter_state": Family(fsdp2, backward=fail_once, modes=BOTH),
}
FSDP2_FAMILIES |= {name: family for name, family in CONTROLS.items() if hasattr(FSDPModule, name)}


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
    "fsdp1": fsdp1_family(modes=("none", *BOTH, "prepared")),
    "fsdp1_bfloat16": fsdp1_family(
        functools.partial(
            fsdp1, mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
        ),
        units=fsdp1_units(dtype="bfloat16"),
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
