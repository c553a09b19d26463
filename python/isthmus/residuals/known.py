"""Finds the unit of a live model, prepared or not, by its name."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import nn

from isthmus.units.layout import Layout
from isthmus.units.models import Unit, live_fsdp2_models, units_of
from isthmus.units.prepare import Prepared, all_prepared, prepared_of

Target = nn.Module | dist.ProcessGroup | None


@dataclass(frozen=True)
class KnownModel:
    """The units of a live model, prepared or not."""

    units: Sequence[Unit]
    prepared: Prepared | None

    def is_reduced_over(self, group: dist.ProcessGroup) -> bool:
        """Return whether any unit is."""
        buckets = self.prepared.bucket_group if self.prepared is not None else None
        return group is buckets or any(group in unit.process_groups for unit in self.units)

    def unit_named(self, name: str) -> Unit | None:
        """Return the unit that the backend knows under a name. FSDP1 has names only if it is prepared."""
        if self.prepared is not None:
            return self.prepared.unit_named(name)
        named = [unit for unit in self.units if unit.label == name]
        return named[0] if len(named) == 1 else None

    def layouts(self, state: Mapping[str, Any]) -> list[tuple[Unit, Layout]]:
        """Return the units and layouts that a reduction in the backend's table may be of."""
        if self.prepared is not None:
            found = self.prepared.layouts.get((state["name"], state["layout"]))
            return [] if found is None else [found]
        unit = self.unit_named(state["name"])
        layout = unit.layout() if unit is not None else None
        return [(unit, layout)] if unit and layout and layout.hash == state["layout"] else []


def layout_in_key(unit: Unit, layout: Layout, prepared: Prepared | None) -> int:
    """Return the layout in the key of a unit that `layout` is loaded for: FSDP1's has none unless it is prepared."""
    if prepared is not None:
        return prepared.expect(unit, layout)
    return layout.hash if unit.label else 0


def known_models(target: Target) -> list[KnownModel]:
    """Return prepared models, and unprepared FSDP models: `target`, or else all FSDP2 models that are alive.

    If `target` is a model, its parts come first.
    """
    models = [target] if isinstance(target, nn.Module) else live_fsdp2_models()
    inside = [prepared_of(module) for model in models for module in model.modules()]
    prepared = {id(entry): entry for entry in [*inside, *all_prepared()] if entry is not None}
    known = [KnownModel(entry.units, entry) for entry in prepared.values()]
    unprepared = [model for model in models if prepared_of(model) is None]
    return known + [KnownModel(units_of(model), None) for model in unprepared]


def find_unit(
    name: str, groups: Collection[dist.ProcessGroup], known: Iterable[KnownModel]
) -> tuple[Unit, Prepared | None] | None:
    """Return the unit of that name that is reduced over one of `groups`, and what `prepare` noted about its model.

    None if there is none, or several.
    """
    found = [
        (unit, model.prepared)
        for model in known
        if (unit := model.unit_named(name)) is not None and any(group in groups for group in unit.process_groups)
    ]
    return found[0] if len(found) == 1 else None
