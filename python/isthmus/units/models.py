"""The units of a model, their parameters, and the process groups that they are reduced over.

FSDP has no public view of its units, so private attributes of torch are read; checked on torch 2.11 and 2.15.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from isthmus.backends import companion_of, isthmus_backend
from isthmus.units.layout import Layout, Parameter, clean_name, concatenated, mesh_part, rows

# FSDP2's objects for parameters that are reduced together, and for one parameter (FSDPParamGroup, FSDPParam).
ParamGroup = Any
ShardedParam = Any


# --- Units of models ---


@dataclass(frozen=True)
class Unit:
    """Parameters that a model reduces together. Refers to no module, so that it keeps none alive."""

    name: str  # in the model: "blocks.0", "root"
    parameters: tuple[Parameter, ...]  # with padding between them
    in_rows: bool  # FSDP2
    shard_group: dist.ProcessGroup | None
    replicate_group: dist.ProcessGroup | None

    @property
    def num_shards(self) -> int:
        """Return the number of ranks of the reduce-scatter; 1 if there is none."""
        return self.shard_group.size() if self.shard_group is not None else 1

    @property
    def process_groups(self) -> list[dist.ProcessGroup]:
        """Return the groups that the unit is reduced over."""
        return [group for group in (self.shard_group, self.replicate_group) if group is not None]

    def layout(self) -> Layout:
        """Return the layout of a reduction in which all parameters have gradients."""
        if self.in_rows:
            return rows(self.parameters, self.num_shards)
        return concatenated(self.parameters, self.num_shards)


def bucket_unit(index: int, parameters: Sequence[Parameter], process_group: dist.ProcessGroup) -> Unit:
    """Return the unit of a bucket that holds these parameters."""
    return Unit(
        name=f"bucket {index}",
        parameters=tuple(parameters),
        in_rows=False,
        shard_group=None,
        replicate_group=process_group,
    )


def units_of(model: nn.Module) -> list[Unit]:
    """Return the FSDP2 and FSDP1 units in `model`, in the order of its modules."""
    return [unit for _, unit in fsdp2_units(model)] + [unit for _, _, unit in fsdp1_units(model)]


def groups_of(model: nn.Module) -> list[dist.ProcessGroup]:
    """Return the process groups that gradients of `model` may be reduced over, with any backend."""
    groups = [group for unit in units_of(model) for group in unit.process_groups]
    groups += [module.process_group for _, module in ddp_modules(model)]
    # The mesh of a DTensor says nothing about FSDP2's groups: torch takes meshes of equal ranks for one another.
    if not groups:
        meshes = dict.fromkeys(p.device_mesh for p in model.parameters() if isinstance(p, DTensor))
        groups = [mesh.get_group(dim) for mesh in meshes for dim in range(mesh.ndim)]
    return list(dict.fromkeys(groups))


def unit_name(module_names: Iterable[str]) -> str:
    """Return the name of the unit that consists of these modules."""
    names = (clean_name(name) or "root" for name in module_names)
    return ", ".join(dict.fromkeys(names))  # wrappers of modules pass for them


# --- FSDP2 ---


def fsdp2_groups(model: nn.Module) -> list[ParamGroup]:
    """Return FSDP2's objects in `model`, each once."""
    found = {id(group): group for module in model.modules() for group in param_groups_of(module)}
    return list(found.values())


def fsdp2_units(model: nn.Module) -> Iterator[tuple[ParamGroup, Unit]]:
    """Yield FSDP2's units in `model`."""
    modules = dict(model.named_modules())
    owners = {id(module): name for name, module in modules.items()}
    found: dict[int, tuple[ParamGroup, list[str]]] = {}
    for name, module in modules.items():
        for group in param_groups_of(module):
            found.setdefault(id(group), (group, []))[1].append(name)
    for group, names in found.values():
        yield (
            group,
            Unit(
                name=unit_name(names) + _place_in_module(group),
                parameters=tuple(describe(group, owners).values()),
                in_rows=True,
                shard_group=shard_group(group),
                replicate_group=replicate_group(group),
            ),
        )


def _place_in_module(group: ParamGroup) -> str:
    """Return what distinguishes the units of a module that is sharded over several meshes (torch 2.15)."""
    index = [id(other) for other in param_groups_of(group.modules[0])].index(id(group))
    return f" [{index + 1}]" if index else ""


# FSDP2 packs one unit's gradients while it reduces another's: this costs the memory of one more unit.
INPUT_BUFFERS = 2


def let_reductions_overlap(groups: Sequence[ParamGroup]) -> None:
    """Let FSDP2 pack the next unit's gradients while one is being reduced, unless the model was told otherwise.

    This needs torch 2.13; older ones wait for the reduction first.
    """
    limits = {getattr(group, "reduce_scatter_max_input_buffers", None) for group in groups}
    in_symmetric_memory = any("SymmMem" in type(group._reduce_scatter_comm).__name__ for group in groups)
    if limits != {1} or in_symmetric_memory:  # 1 is torch's default; torch has one buffer of symmetric memory
        return
    for group in groups:
        group.modules[0].set_reduce_scatter_max_input_buffers(INPUT_BUFFERS, recurse=False)
        # A model's first forward pass copies the largest number of its units to here.
        group.comm_ctx.reduce_scatter_max_input_buffers = INPUT_BUFFERS


def is_being_gathered(group: ParamGroup) -> bool:
    """Return whether a unit's gather was begun, and not waited for."""
    return group._all_gather_result is not None


def is_in_forward(group: ParamGroup) -> bool:
    """Return whether FSDP2 gathers a unit for a forward pass now, ahead or not."""
    name: str = group._training_state.name
    return name == "FORWARD"


def gathers_ahead(model: nn.Module) -> bool:
    """Return whether any unit of `model` gathers others ahead in forward passes."""
    modules = (module for group in fsdp2_groups(model) for module in group.modules)
    return any(module._get_fsdp_state()._states_to_forward_prefetch for module in modules)


def gather_ahead(group: ParamGroup) -> None:
    """Let FSDP2 gather a unit for the forward pass that is under way, which will wait for it."""
    group._prefetch_unshard(group, "forward")


def describe(group: ParamGroup, module_names: dict[int, str]) -> dict[ShardedParam, Parameter]:
    """Return a unit's parameters in the form of layouts. `module_names`: by id of the module."""
    part = mesh_part(group.mesh_info.mesh)
    described = {}
    for param in group.fsdp_params:
        owner, name = param._module_info.module, param._module_info.param_name
        described[param] = _parameter(param, clean_name(f"{module_names[id(owner)]}.{name}".lstrip(".")), part)
    return described


def _parameter(param: ShardedParam, name: str, part: str) -> Parameter:
    return Parameter(name, tuple(param._orig_size), param.fsdp_placement.dim, part)


def trainable_indexes(group: ParamGroup) -> tuple[int, ...]:
    """Return the indexes in the unit of parameters that may have a gradient, in the order of the reduction."""
    params = group.fsdp_params
    order = getattr(group, "_reduce_scatter_param_indices", None) or range(len(params))  # torch 2.15
    return tuple(index for index in order if params[index].sharded_param.requires_grad)


def section_elements(group: ParamGroup, index: int) -> int:
    """Return how many elements of a row belong to the parameter with this index in the unit."""
    elements: int = group.fsdp_params[index].padded_sharded_param_size.numel()
    return elements


def param_groups_of(module: nn.Module) -> list[ParamGroup]:
    """Return FSDP2's objects of `module` itself, not of its children; none if it is no FSDP2 module."""
    get_state = getattr(module, "_get_fsdp_state", None)
    return _groups_of_state(get_state()) if get_state is not None else []


def _groups_of_state(state: Any) -> list[ParamGroup]:
    if hasattr(state, "_fsdp_param_groups"):  # newer than torch 2.11
        return list(state._fsdp_param_groups)
    group = getattr(state, "_fsdp_param_group", None)
    return [] if group is None else [group]


def shard_group(group: ParamGroup) -> dist.ProcessGroup | None:
    """Return the process group of the reduce-scatter, if there is one.

    FSDP2 may be given one of its own after `isthmus.attach`; the reductions then stay with the group that is attached.
    """
    separate: dist.ProcessGroup | None = getattr(group.mesh_info, "reduce_scatter_process_group", None)  # torch 2.13
    shared = gather_group(group)
    if separate is None or (shared is not None and companion_of(shared) and isthmus_backend(separate) is None):
        return shared
    return separate


def replicate_group(group: ParamGroup) -> dist.ProcessGroup | None:
    """Return the process group of HSDP's all-reduce, if there is one."""
    return getattr(group.mesh_info, "replicate_process_group", None)


def gather_group(group: ParamGroup) -> dist.ProcessGroup | None:
    """Return the process group of the all-gather, if there is one."""
    return getattr(group.mesh_info, "shard_process_group", None)


def label_of(group: ParamGroup) -> str:
    """Return FSDP2's name of a unit: "root" before the first forward pass."""
    return (group._module_fqn or "root") + _place_in_module(group)


def root_of(module: Any) -> nn.Module | None:
    """Return the module to which FSDP2's names of units are relative, `module` or one around it; None before a pass."""
    for state in module._get_fsdp_state()._state_ctx.all_states:
        root: nn.Module = state._modules[0]
        return root
    return None


def fsdp2_roots(model: nn.Module) -> list[nn.Module]:
    """Return the outermost modules of FSDP2 in `model`, which have their passes on their own."""
    if hasattr(model, "_get_fsdp_state"):
        return [root_of(model) or model]
    return [root for child in model.children() for root in fsdp2_roots(child)]


# --- FSDP1 and DDP ---


def fsdp1_handles(model: nn.Module) -> list[Any]:
    """Return FSDP1's handles of the flat parameters in `model`."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    found = [getattr(m, "_handle", None) for m in model.modules() if isinstance(m, FullyShardedDataParallel)]
    return [handle for handle in found if handle is not None]


def fsdp1_units(model: nn.Module) -> Iterator[tuple[nn.Module, torch.Tensor, Unit]]:
    """Yield FSDP1's modules in `model`, each with its flat parameter and its unit."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    for name, module in model.named_modules():
        handle = getattr(module, "_handle", None) if isinstance(module, FullyShardedDataParallel) else None
        if handle is None or not handle.flat_param.requires_grad:
            continue
        is_sharded = bool(handle.uses_sharded_strategy)
        parameters = tuple(_flat_parameters(handle.flat_param, name))
        yield (
            module,
            handle.flat_param,
            Unit(
                name=unit_name([name]),
                parameters=parameters,
                in_rows=False,
                shard_group=module.process_group if is_sharded else None,
                replicate_group=getattr(module, "_inter_node_pg", None) if is_sharded else module.process_group,
            ),
        )


def _flat_parameters(flat: Any, prefix: str) -> Iterator[Parameter]:
    names = iter(zip(flat._fqns, flat._shapes, strict=True))
    for num_elements, is_padding in zip(flat._numels_with_padding, flat._is_padding_mask, strict=True):
        if is_padding:
            yield Parameter("", (num_elements,))
        else:
            name, shape = next(names)
            yield Parameter(clean_name(f"{prefix}.{name}".lstrip(".")), tuple(shape))


def ddp_modules(model: nn.Module) -> list[tuple[str, nn.parallel.DistributedDataParallel]]:
    """Return the DDP modules in `model`, by name."""
    return [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.parallel.DistributedDataParallel)
    ]
