"""Finds the units of a model, their parameters, who holds them, and the process groups that they are reduced over."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, MutableMapping
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.weak import WeakIdKeyDictionary

from isthmus.base.backends import companion_of, isthmus_backend
from isthmus.model.layout import Parameter, clean_name, mesh_part
from isthmus.model.units import Unit
from isthmus.torch_private import models as private
from isthmus.torch_private.models import ParamGroup

if TYPE_CHECKING:
    from isthmus import _C


def groups_of(model: nn.Module) -> list[dist.ProcessGroup]:
    """Return the process groups that gradients of `model` may be reduced over, with any backend."""
    units = [unit for _, unit in fsdp2_units(model)] + [unit for _, _, unit in fsdp1_units(model)]
    groups = [group for unit in units for group in unit.process_groups]
    groups += [module.process_group for module in ddp_modules(model)]
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
    return list(dict.fromkeys(group for module in model.modules() for group in private.param_groups_of(module)))


def fsdp2_units(model: nn.Module) -> Iterator[tuple[ParamGroup, Unit]]:
    """Yield FSDP2's units in `model`."""
    names = {module: name for name, module in model.named_modules()}
    names_of: dict[ParamGroup, list[str]] = {}
    for module, name in names.items():
        for group in private.param_groups_of(module):
            names_of.setdefault(group, []).append(name)
    for group, own_names in names_of.items():
        name, parameters = unit_name(own_names) + _place_in_module(group), tuple(_parameters(group, names))
        yield group, Unit(name, parameters, True, shard_group(group), _those(private.replicate_group(group)))


def _those(*groups: dist.ProcessGroup | None) -> tuple[dist.ProcessGroup, ...]:
    return tuple(group for group in groups if group is not None)


def _place_in_module(group: ParamGroup) -> str:
    """Return what distinguishes the units of a module that is sharded over several meshes (torch 2.15)."""
    index = private.param_groups_of(private.modules_of(group)[0]).index(group)
    return f" [{index + 1}]" if index else ""


# FSDP2 packs one unit's gradients while it reduces another's: this costs the memory of one more unit.
INPUT_BUFFERS = 2


def _parameters(group: ParamGroup, module_names: dict[nn.Module, str]) -> Iterator[Parameter]:
    """Yield a unit's parameters."""
    part = mesh_part(private.mesh_of(group))
    for param in private.parameters_of(group):
        name = clean_name(f"{module_names[param.module]}.{param.name}".lstrip("."))
        yield Parameter(name, tuple(param.shape), param.dim, part)


def shard_group(group: ParamGroup) -> dist.ProcessGroup | None:
    """Return the process group of the reduce-scatter, if there is one.

    FSDP2 may be given one of its own after `isthmus.attach`; the reductions then stay with the group that is attached.
    """
    separate = private.separate_shard_group(group)
    shared = private.gather_group(group)
    if separate is None or (shared is not None and companion_of(shared) and isthmus_backend(separate) is None):
        return shared
    return separate


def label_of(group: ParamGroup) -> str:
    """Return FSDP2's name of a unit: "root" before the first forward pass."""
    return (private.path_of(group) or "root") + _place_in_module(group)


def fsdp2_roots(model: nn.Module) -> list[nn.Module]:
    """Return the outermost modules of FSDP2 in `model`, which have their passes on their own."""
    if private.is_fsdp2(model):
        return [private.root_of(model) or model]
    return [root for child in model.children() for root in fsdp2_roots(child)]


# --- FSDP1 and DDP ---


def fsdp1_units(model: nn.Module) -> Iterator[tuple[nn.Module, Any, Unit]]:
    """Yield FSDP1's modules in `model`, each with the handle of its flat parameter and its unit."""
    for prefix, module in model.named_modules():
        handle = private.handle_of(module)
        if handle is None or not (flat := private.flat_parameter_of(handle)).requires_grad:
            continue
        names = ((name and f"{prefix}.{name}".lstrip("."), shape) for name, shape in private.parts_of(flat))
        parameters = tuple(Parameter(clean_name(name), tuple(shape)) for name, shape in names)
        groups = (module.process_group, private.hybrid_group(module))
        shard_group, other = groups if private.is_sharded(handle) else (None, groups[0])
        yield module, handle, Unit(unit_name([prefix]), parameters, False, shard_group, _those(other))


def ddp_modules(model: nn.Module) -> list[nn.parallel.DistributedDataParallel]:
    """Return the DDP modules in `model`."""
    return [module for module in model.modules() if isinstance(module, nn.parallel.DistributedDataParallel)]


# --- Who holds the native module's units: FSDP2's and FSDP1's objects, DDP's modules, DTensors ---

_numbers = itertools.count(1)
_number_of: MutableMapping[Any, int] = WeakIdKeyDictionary()

# An owner has a unit in each group that reduces or gathers it, and DDP's modules have one for each bucket.
_units_of: MutableMapping[Any, list[tuple[Hashable, _C.Unit]]] = WeakIdKeyDictionary()


def number_of(owner: Any) -> int:
    """Return the number of an owner, which this process never uses again."""
    if owner not in _number_of:
        _number_of[owner] = next(_numbers)
    return _number_of[owner]


def held_unit(owner: Any, backend: _C.Backend, make: Callable[[], _C.Unit], what: Hashable = "") -> _C.Unit:
    """Return the unit of `owner` in a group, which the first call makes, and which lives as long as the owner.

    what: which of the owner's units it is.
    """
    units = _units_of.setdefault(owner, [])
    for found, unit in units:
        if found == what and backend.has(unit):
            return unit
    units.append((what, make()))
    return units[-1][1]


def let_go(owner: Any, but: str = "") -> None:
    """Let go of an owner's units, but for those of this name: under another one they are new."""
    _units_of[owner] = [held for held in _units_of.get(owner, ()) if held[1].name == but]


def owners_in(model: nn.Module) -> list[Any]:
    """Return the owners of units in `model`."""
    owners: list[Any] = [*fsdp2_groups(model), *filter(None, map(private.handle_of, model.modules()))]
    owners += ddp_modules(model)
    return owners + [parameter for parameter in model.parameters() if isinstance(parameter, DTensor)]


def held_units(model: nn.Module) -> list[_C.Unit]:
    """Return the units that a model has so far."""
    return [unit for owner in owners_in(model) for _, unit in _units_of.get(owner, ())]
