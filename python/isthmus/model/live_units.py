"""Finds the units of live models, prepared or not, to place saved state."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch import nn

from isthmus.model.models import ddp_modules, fsdp1_units, owners_in
from isthmus.model.prepare import prepared_models, prepared_of
from isthmus.model.units import Unit, prepared_units

Target = nn.Module | dist.ProcessGroup | None


def live_units(target: Target) -> list[Unit]:
    """Return the units of a model; by default, of all that were prepared or prepared themselves.

    That of DDP has no name: its reductions name its buckets.
    """
    models = [target] if isinstance(target, nn.Module) else prepared_models()
    return list({id(owner): unit for model in models for owner, unit in _units_of(model)}.values())


def _units_of(model: nn.Module) -> Iterator[tuple[Any, Unit]]:
    yield from ((owner, prepared_units[owner]) for owner in owners_in(model) if owner in prepared_units)
    yield from ((handle, unit) for _, handle, unit in fsdp1_units(model) if handle not in prepared_units)
    for ddp in ddp_modules(model):
        yield ddp, Unit("", (), other_groups=(ddp.process_group,), prepared=prepared_of(model))
    for module in model.modules():  # what was prepared by itself keeps the names of that call
        if module is not model and prepared_of(module) is not None:
            yield from _units_of(module)


def reduces(unit: Unit, name: str) -> bool:
    """Return whether a backend knows the unit, or one of DDP's buckets, under this name."""
    if not unit.name and unit.prepared is not None:
        return split_name(name)[0].startswith(unit.prepared.base_name("bucket "))
    return name == unit.full_name


def split_name(name: str) -> tuple[str, int]:
    """Return a unit's name without the number that tells apart models of equal names, "blocks.0 (2)"; and that."""
    found = re.fullmatch(r"(.*?)(?: \((\d+)\))?", name, re.DOTALL)
    assert found is not None  # any text matches
    return found[1], int(found[2] or 1)
