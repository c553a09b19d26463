"""Finds the units of live models, prepared or not, to place saved state."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from isthmus.units.layout import Layout
from isthmus.units.models import Unit, ddp_modules, fsdp1_units, fsdp2_groups, number_of
from isthmus.units.prepare import prepared_models, prepared_of
from isthmus.units.prepared import Prepared, named_parameters, units_of_groups

Target = nn.Module | dist.ProcessGroup | None


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

    @property
    def full_name(self) -> str:
        """Return the name under which a backend knows the unit, if it has a name."""
        return self.prepared.full_name(self.unit.name) if self.prepared is not None and self.unit is not None else ""

    def reduces(self, name: str) -> bool:
        """Return whether a backend knows the unit, or one of DDP's buckets, under this name."""
        if self.unit is None and self.prepared is not None:
            return split_name(name)[0].startswith(self.prepared.base_name("bucket "))
        return name == self.full_name


def live_units(target: Target) -> list[LiveUnit]:
    """Return the units of a model; by default, of all that were prepared or prepared themselves."""
    models = [target] if isinstance(target, nn.Module) else prepared_models()
    return list({unit.owner: unit for model in models for unit in _units_of(model)}.values())


def _units_of(model: nn.Module) -> Iterator[LiveUnit]:
    for group in fsdp2_groups(model):
        if (found := units_of_groups.get(group)) is not None:
            name = found.prepared.base_name(found.unit.name)
            groups = tuple(found.unit.process_groups)
            yield LiveUnit(number_of(group), name, found.unit, found.prepared, groups)
    prepared = prepared_of(model)
    for _, handle, unit in fsdp1_units(model):
        name = "" if prepared is None else prepared.base_name(unit.name)
        yield LiveUnit(number_of(handle), name, unit, prepared, tuple(unit.process_groups))
    for ddp in ddp_modules(model):
        yield LiveUnit(number_of(ddp), "", None, prepared, (ddp.process_group,))
    for parameter in model.parameters():
        if prepared is not None and isinstance(parameter, DTensor) and parameter in named_parameters:
            unit = prepared.units[number_of(parameter)]
            groups = tuple(parameter.device_mesh.get_group(dim) for dim in range(parameter.device_mesh.ndim))
            yield LiveUnit(number_of(parameter), prepared.base_name(unit.name), unit, prepared, groups)
    for module in model.modules():  # what was prepared by itself keeps the names of that call
        if module is not model and prepared_of(module) is not None:
            yield from _units_of(module)


def split_name(name: str) -> tuple[str, int]:
    """Return a unit's name without the number that tells apart models of equal names, "blocks.0 (2)"; and that."""
    found = re.fullmatch(r"(.*?)(?: \((\d+)\))?", name, re.DOTALL)
    assert found is not None  # any text matches
    return found[1], int(found[2] or 1)
