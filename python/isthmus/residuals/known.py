"""Finds the units of live models, prepared or not, to save their state and to place saved state."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from isthmus.units.layout import Layout
from isthmus.units.models import Unit, ddp_modules, fsdp1_units, fsdp2_units, live_fsdp2_models
from isthmus.units.owners import number_of
from isthmus.units.prepare import prepared_models, prepared_of
from isthmus.units.prepared import Prepared

Target = nn.Module | dist.ProcessGroup | None

# The number that tells apart models of equal names: "blocks.0 (2)".
_NUMBER = re.compile(r" \((\d+)\)$")


@dataclass(frozen=True)
class LiveUnit:
    """A unit of a live model. Its name is unique within the model."""

    owner: int
    name: str  # "": FSDP1 names it in its first reduction, or it is a DDP module and names its buckets
    unit: Unit | None  # FSDP's or a DTensor's; None for DDP
    prepared: Prepared | None
    groups: tuple[dist.ProcessGroup, ...]

    @property
    def layout(self) -> Layout | None:
        """Return the layout of all parameters."""
        return self.unit.layout() if self.unit is not None else None

    def name_in(self, backend: Any) -> str:
        """Return the name under which a backend knows the unit."""
        if self.prepared is not None and self.unit is not None:
            return self.prepared.full_name(self.unit.name)
        name: str = backend.unit_name(self.owner, self.name)
        return name


def live_units(target: Target) -> list[LiveUnit]:
    """Return the units of a model; by default, of all prepared models and all FSDP2 models that had a forward pass."""
    if isinstance(target, nn.Module):
        models = [target]
    else:
        models = list(dict.fromkeys([*prepared_models(), *live_fsdp2_models()]))
    found: dict[int, LiveUnit] = {}
    for model in models:
        for unit in _units_of(model):
            # A model may be part of a prepared one, which then names its units.
            if unit.owner not in found or (found[unit.owner].prepared is None and unit.prepared is not None):
                found[unit.owner] = unit
    return list(found.values())


def _units_of(model: nn.Module) -> Iterator[LiveUnit]:
    for module in model.modules():
        if module is not model and prepared_of(module) is not None:
            yield from _units_of(module)
    prepared = prepared_of(model)

    def live(owner: Any, unit: Unit, name: str) -> LiveUnit:
        full = name if prepared is None else prepared.base_name(unit.name)
        return LiveUnit(number_of(owner), full, unit, prepared, tuple(unit.process_groups))

    for group, unit in fsdp2_units(model):
        yield live(group, unit, unit.label)
    for module, _, unit in fsdp1_units(model):
        yield live(module._handle, unit, "")
    for _, module in ddp_modules(model):
        yield LiveUnit(number_of(module), "", None, prepared, (module.process_group,))
    parameters = [parameter for parameter in model.parameters() if isinstance(parameter, DTensor)]
    if prepared is not None and len(parameters) == len(prepared.units):
        for parameter, unit in zip(parameters, prepared.units, strict=True):
            if not unit.in_rows and unit.shard_group is None and unit.replicate_group is None:
                groups = tuple(parameter.device_mesh.get_group(dim) for dim in range(parameter.device_mesh.ndim))
                yield LiveUnit(number_of(parameter), prepared.base_name(unit.name), unit, prepared, groups)


def base_name(name: str) -> str:
    """Return a unit's name without the number that tells apart equal names."""
    return _NUMBER.sub("", name)


def number_in(name: str) -> int:
    """Return a unit's number among units of equal names, from 1 on."""
    found = _NUMBER.search(name)
    return int(found[1]) if found else 1


def named(name: str, live: Iterable[LiveUnit], group: dist.ProcessGroup) -> LiveUnit | None:
    """Return the live unit over `group` for a saved name; their order tells apart models of equal names."""
    matching = [unit for unit in live if unit.name == base_name(name) and group in unit.groups]
    matching.sort(key=lambda unit: unit.prepared.number if unit.prepared is not None else 0)
    number = number_in(name)
    return matching[number - 1] if number <= len(matching) else None
