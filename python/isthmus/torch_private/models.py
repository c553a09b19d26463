"""Private names of what torch makes of a model: FSDP2, FSDP1, DDP, meshes, wrappers, checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from operator import attrgetter
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

# FSDP2's object for parameters that are reduced together: FSDPParamGroup.
ParamGroup = Any

# --- The units of a model of FSDP2 ---
# Instead: `FSDPModule.units()`


def is_fsdp2(module: nn.Module) -> bool:
    """Return whether `fully_shard` was called for `module`."""
    return hasattr(module, "_get_fsdp_state")


def param_groups_of(module: nn.Module) -> list[ParamGroup]:
    """Return FSDP2's objects of `module` itself, not of its children; none if it is no FSDP2 module."""
    if not is_fsdp2(module):
        return []
    state = _state_of(module)
    if hasattr(state, "_fsdp_param_groups"):  # newer than torch 2.11
        return list(state._fsdp_param_groups)
    return [] if state._fsdp_param_group is None else [state._fsdp_param_group]


def modules_of(group: ParamGroup) -> list[nn.Module]:
    """Return the modules that were given to `fully_shard` together."""
    return list(group.modules)


def root_of(module: nn.Module) -> nn.Module | None:
    """Return the module to which FSDP2's names of units are relative, `module` or one around it; None before a pass."""
    states = _state_of(module)._state_ctx.all_states
    return states[0]._modules[0] if states else None


def _state_of(module: Any) -> Any:
    return module._get_fsdp_state()


# --- What a unit of FSDP2 consists of, in the order of its reduction; its path; what reduces it ---
# Instead: fields of such a unit

device_of: Callable[[ParamGroup], torch.device] = attrgetter("device")  # it computes on this
mesh_of: Callable[[ParamGroup], Any] = attrgetter("mesh_info.mesh")  # it is sharded and replicated over this
path_of: Callable[[ParamGroup], str | None] = attrgetter("_module_fqn")  # from its root; None before a forward pass


class ShardedParameter(NamedTuple):
    """A parameter of a unit of FSDP2."""

    module: nn.Module  # that has it
    name: str  # there
    shape: torch.Size  # on the ranks of the unit's groups together
    dim: int  # that is sharded
    tensor: torch.Tensor  # the DTensor of this rank's shard


def parameters_of(group: ParamGroup) -> Iterator[ShardedParameter]:
    """Yield the parameters of a unit."""
    for param in group.fsdp_params:
        info, dim = param._module_info, param.fsdp_placement.dim
        yield ShardedParameter(info.module, info.param_name, param._orig_size, dim, param.sharded_param)


def trainable_indexes(group: ParamGroup) -> tuple[int, ...]:
    """Return the indexes in the unit of parameters that may have a gradient, in the order of the reduction."""
    params = group.fsdp_params
    order = getattr(group, "_reduce_scatter_param_indices", None) or range(len(params))  # torch 2.15
    return tuple(index for index in order if params[index].sharded_param.requires_grad)


def section_elements(group: ParamGroup, index: int) -> int:
    """Return how many elements of a row belong to the parameter with this index in the unit."""
    return int(group.fsdp_params[index].padded_sharded_param_size.numel())


def gather_group(group: ParamGroup) -> dist.ProcessGroup | None:
    """Return the process group of the all-gather, if there is one."""
    return getattr(group.mesh_info, "shard_process_group", None)


def separate_shard_group(group: ParamGroup) -> dist.ProcessGroup | None:
    """Return the process group of the reduce-scatter, if it has one of its own."""
    return getattr(group.mesh_info, "reduce_scatter_process_group", None)  # torch 2.13


def replicate_group(group: ParamGroup) -> dist.ProcessGroup | None:
    """Return the process group of HSDP's all-reduce, if there is one."""
    return getattr(group.mesh_info, "replicate_process_group", None)


# --- Whether the user has set collectives of their own, to be put back ---
# Instead: getters beside `set_custom_all_gather`, `set_custom_reduce_scatter`

# A unit's all-gather and reduce-scatter.
collectives_of: Callable[[ParamGroup], tuple[Any, Any]] = attrgetter("_all_gather_comm", "_reduce_scatter_comm")

# --- How many reductions have an input at once ---
# Instead: a getter beside `set_reduce_scatter_max_input_buffers`, which also counts after a first pass


def set_input_buffers(groups: Collection[ParamGroup], number: int) -> None:
    """Set how many units' gradients are packed or reduced at once, unless the model was told otherwise.

    Torch before 2.13 has no such number.
    """
    limits = {getattr(group, "reduce_scatter_max_input_buffers", None) for group in groups}
    in_symmetric_memory = any("SymmMem" in type(collectives_of(group)[1]).__name__ for group in groups)
    if limits != {1} or in_symmetric_memory:  # 1 is torch's default; torch has one buffer of symmetric memory
        return
    for group in groups:
        group.modules[0].set_reduce_scatter_max_input_buffers(number, recurse=False)
        # A model's first forward pass copies the largest number of its units to here.
        group.comm_ctx.reduce_scatter_max_input_buffers = number


# --- Whether a unit is idle, and whether its gather was waited for ---
# Instead: a field of such a unit


def is_in_a_pass(group: ParamGroup) -> bool:
    """Return whether a unit is being gathered, or is in a forward or backward pass."""
    return group._all_gather_result is not None or group._training_state.name != "IDLE"


def is_in_forward(group: ParamGroup) -> bool:
    """Return whether FSDP2 gathers a unit for a forward pass now, ahead or not."""
    return bool(group._training_state.name == "FORWARD")


# --- To gather one unit ahead as soon as the gather before it is waited for; whether the user prefetches ---
# Instead: a `set_modules_to_forward_prefetch` that begins before the copy-out


def prefetches(module: nn.Module) -> bool:
    """Return whether a module of FSDP2 gathers others ahead in forward passes."""
    return bool(_state_of(module)._states_to_forward_prefetch)


def gather_ahead(group: ParamGroup) -> None:
    """Let FSDP2 gather a unit for the forward pass that is under way, which will wait for it."""
    group._prefetch_unshard(group, "forward")


# --- The same of FSDP1 ---
# Instead: none asked, as FSDP1 is old

# Of FSDP1's handle its flat parameter, and whether that is sharded, and not only replicated.
flat_parameter_of: Callable[[Any], torch.Tensor] = attrgetter("flat_param")
is_sharded: Callable[[Any], bool] = attrgetter("uses_sharded_strategy")


def handle_of(module: nn.Module) -> Any:
    """Return FSDP1's handle of the flat parameter of `module` itself, None if there is none."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    return getattr(module, "_handle", None) if isinstance(module, FullyShardedDataParallel) else None


def first_name_of(handle: Any) -> str | None:
    """Return the name, below its module, of the first parameter in a flat one; None if this is no handle of one."""
    flat = getattr(handle, "flat_param", None)
    return None if flat is None else str(flat._fqns[0])


def parts_of(flat: Any) -> Iterator[tuple[str, torch.Size]]:
    """Yield names, below the module, and shapes in a flat parameter, padding included, which has no name."""
    named = iter(zip(flat._fqns, flat._shapes, strict=True))
    for num_elements, is_padding in zip(flat._numels_with_padding, flat._is_padding_mask, strict=True):
        yield ("", torch.Size([num_elements])) if is_padding else next(named)


def parameters_in(flat: Any) -> Iterator[tuple[Any, torch.Tensor | None]]:
    """Yield, of each parameter in a flat one, its DTensor's spec, if it was one, and what the user made, if kept."""
    specs = flat._param_extensions
    return zip(specs, flat._params or [None] * len(specs), strict=True)  # kept with use_orig_params


def hybrid_group(module: Any) -> dist.ProcessGroup | None:
    """Return the group over which FSDP1's module, or its state, replicates shards, if it does."""
    return getattr(module, "_inter_node_pg", None)


def fsdp1_mesh(module: Any) -> Any:
    """Return the mesh that FSDP1's module, or its state, was given, None if it was given none."""
    return getattr(module, "_device_mesh", None)


# --- That a prepared model of DDP can be pickled; whether its parameter was a DTensor ---
# Instead: a hook that does not pickle; a public mark


def unlist_newest_hook(module: nn.parallel.DistributedDataParallel) -> None:
    """Take the newest communication hook off the list that DDP pickles."""
    module._comm_hooks.pop()


def dtensor_spec(parameter: torch.Tensor) -> Any:
    """Return the spec of the DTensor of which DDP made this parameter, None if it was none."""
    return getattr(parameter, "_st_info", None)


# --- Along which other dimensions copies lie ---
# Instead: `DeviceMesh.root`, and the meshes beside one that was cut out of it


def root_mesh(mesh: Any) -> Any:
    """Return the mesh that `mesh` was cut out of, or `mesh`."""
    return mesh._get_root_mesh()


def ranks_of_meshes_like(mesh: Any) -> list[list[int]]:
    """Return the ranks of the meshes that lie in their root as `mesh` does, each in one order; of `mesh`, too.

    The root need not have their dimensions: those of `_unflatten` are not in it.
    """
    ranks: list[list[int]] = mesh._layout.remap_to_tensor(mesh._rank_map).flatten(1).tolist()
    return ranks


# --- Names of modules that stay when wrappers change ---
# Instead: a public "clean name"

WRAPPERS = ("_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod")
