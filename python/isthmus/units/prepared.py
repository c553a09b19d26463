"""The record of a prepared model: the names of its units, and their layouts; and to which one a unit belongs."""

from __future__ import annotations

import itertools
import re
import weakref
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.utils.weak import WeakIdKeyDictionary

from isthmus import native
from isthmus.torch_private.models import ParamGroup, first_name_of
from isthmus.units.layout import Layout, Parameter, clean_name
from isthmus.units.models import Unit, bucket_unit

if TYPE_CHECKING:
    from isthmus import _C
    from isthmus.units.collectives import Replaced
    from isthmus.units.prefetch import Prefetch


@dataclass
class Prepared:
    """The record of a prepared model. Refers to no module, so that it keeps none alive."""

    name: str
    patterns: str
    prefetches: bool
    number: int = 0  # tells models of equal names in one group apart
    units: list[Unit] = field(default_factory=list)  # FSDP's
    bucket_group: dist.ProcessGroup | None = None  # DDP's
    bucket_parameters: tuple[Parameter, ...] = ()  # all that DDP reduces
    # The layouts of reductions so far, by hash; a checkpoint saves them with residuals.
    layouts: dict[int, Layout] = field(default_factory=dict)
    # DDP's buckets, by name and layout, that occurred in two earlier backward passes or came with a checkpoint.
    settled: set[tuple[str, int]] = field(default_factory=set)
    replaced: list[Replaced] = field(default_factory=list)  # FSDP2's collectives
    kept: dict[str, str] = field(default_factory=dict)  # why units keep FSDP2's collectives
    prefetch: Prefetch | None = None

    def base_name(self, unit_name: str) -> str:
        """Return the name of a unit without the number among models of equal names."""
        return f"{self.name}/{unit_name}" if self.name else unit_name

    def full_name(self, unit_name: str) -> str:
        """Return the name under which the backend knows a unit."""
        name = self.base_name(unit_name)
        return f"{name} ({self.number + 1})" if self.number else name

    def bucket_named(self, name: str) -> Unit | None:
        """Return a bucket of DDP by its name without the model's number; it may hold any parameters."""
        index = re.search(r"bucket (\d+)", name)
        if index and self.bucket_group is not None and self.base_name(index[0]) in (name, name.partition(" (")[0]):
            return bucket_unit(int(index[1]), self.bucket_parameters, self.bucket_group)
        return None

    def take_number(self, groups: Iterable[dist.ProcessGroup], owners: Mapping[str, int]) -> None:
        """Take the first number that no others have in any group. owners: who reduces, by the names of units.

        Every rank prepares alike, so all take the same one.
        """
        taken = [_taken.setdefault(group, {}) for group in groups]

        def is_free(number: int) -> bool:
            return all(
                names.get((self.base_name(name), number), owner) == owner
                for names in taken
                for name, owner in owners.items()
            )

        self.number = next(filter(is_free, itertools.count()))
        for names in taken:
            names.update({(self.base_name(name), self.number): owner for name, owner in owners.items()})

    def exact_reason(self, unit_name: str) -> _C.Reason | None:
        """Return why a unit stays exact, None if it does not."""
        core = native.load()
        return None if core.unit_is_compressed(self.patterns, unit_name) else core.Reason.NOT_PREPARED

    def remember(self, layout: Layout) -> int:
        """Note that reductions have this layout; return its hash."""
        self.layouts[layout.hash] = layout
        return layout.hash

    def expect(self, unit: Unit, layout: Layout) -> int:
        """Note a layout from a checkpoint, which counts as settled; return its hash."""
        self.settled.add((self.full_name(unit.name), layout.hash))
        return self.remember(layout)


# Who has taken a name and number. The dead keep theirs: a rank may keep a model that others dropped.
_taken: weakref.WeakKeyDictionary[dist.ProcessGroup, dict[tuple[str, int], int]] = weakref.WeakKeyDictionary()


def forget_names(process_group: dist.ProcessGroup) -> None:
    """Restart the numbers of models that are reduced over a group, as the backend that knew their names is gone."""
    _taken.pop(process_group, None)


# --- FSDP2 ---


@dataclass
class PreparedUnit:
    """A unit of FSDP2. Refers to none of FSDP2's objects, so that it keeps none alive."""

    unit: Unit
    prepared: Prepared
    full_name: str
    exact: _C.Reason | None  # why its name keeps it exact


units_of_groups: weakref.WeakKeyDictionary[ParamGroup, PreparedUnit] = weakref.WeakKeyDictionary()


# --- Gathers of weights ---

# The names of parameters that SimpleFSDP and others gather one by one.
names_of_dtensors: MutableMapping[DTensor, str] = WeakIdKeyDictionary()


def weights_name(gatherer: Any) -> str | None:
    """Return the name of the unit whose parameters `gatherer` gathers, None if it is not known to be a unit.

    gatherer: FSDP2's object of a unit, FSDP1's handle, or a DTensor.
    """
    if isinstance(gatherer, DTensor):
        return names_of_dtensors.get(gatherer)
    if (first := first_name_of(gatherer)) is not None:
        return f"fsdp1:{clean_name(first)}"
    found = units_of_groups.get(gatherer)
    return found.full_name if found is not None else None
