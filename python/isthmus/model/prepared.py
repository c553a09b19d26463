"""The record of a prepared model: the names of its units, and their layouts; and which unit FSDP reduces or gathers.

A unit's own collectives know it. Else FSDP is found on the stack of the call (torch_private/callers.py).
"""

from __future__ import annotations

import itertools
import weakref
from collections import Counter
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import torch.distributed as dist
from torch.utils.weak import WeakIdKeyDictionary

from isthmus.base import native
from isthmus.model.copies import why_fsdp2_is_exact
from isthmus.model.layout import Layout, Parameter
from isthmus.model.models import Unit, held_unit, label_of
from isthmus.torch_private.models import ParamGroup, section_elements, trainable_indexes

if TYPE_CHECKING:
    from isthmus import _C
    from isthmus.model.prefetch import Prefetch

#: DDP rebuilds its buckets after the first backward pass, or after the second with a static graph.
PASSES_BEFORE_REBUILD = 2


@dataclass
class Prepared:
    """The record of a prepared model. Refers to no module, so that it keeps none alive."""

    name: str
    patterns: str
    prefetches: bool
    number: int = 0  # tells models of equal names in one group apart
    units: dict[int, Unit] = field(default_factory=dict)  # FSDP's and DTensors', by owner
    bucket_parameters: tuple[Parameter, ...] = ()  # all that DDP reduces
    # How many backward passes had each bucket of DDP, by name and layout.
    bucket_passes: Counter[tuple[str, int]] = field(default_factory=Counter)
    prefetch: Prefetch | None = None

    def base_name(self, unit_name: str) -> str:
        """Return the name of a unit without the number among models of equal names."""
        return f"{self.name}/{unit_name}" if self.name else unit_name

    def full_name(self, unit_name: str) -> str:
        """Return the name under which the backend knows a unit."""
        name = self.base_name(unit_name)
        return f"{name} ({self.number + 1})" if self.number else name

    def take_number(self, groups: Iterable[dist.ProcessGroup], bucket_owner: int | None = None) -> None:
        """Take the first number that no others have in any group. bucket_owner: DDP's.

        Every rank prepares alike, so all take the same one.
        """
        owners = {self.base_name(unit.name): owner for owner, unit in self.units.items()}
        owners |= {self.base_name("bucket"): bucket_owner} if bucket_owner is not None else {}
        taken = [_taken.setdefault(group, {}) for group in groups]

        def is_free(number: int) -> bool:
            return all(names.get((name, number), owner) == owner for names in taken for name, owner in owners.items())

        self.number = next(filter(is_free, itertools.count()))
        for names in taken:
            names.update({(name, self.number): owner for name, owner in owners.items()})

    @cached_property
    def full_patterns(self) -> str:
        """The patterns, with the prefix of full names before each glob that has it not yet."""
        core = native.load()
        prefix = core.glob_of(f"{self.name}/") if self.name else ""
        globs = [(glob.startswith("!"), glob.removeprefix("!")) for glob in core.split_globs(self.patterns)]
        return ",".join("!" * excludes + prefix + glob.removeprefix(prefix) for excludes, glob in globs)

    def exact_reason(self, unit_name: str) -> _C.Reason | None:
        """Return why a unit stays exact, None if it does not."""
        core, name = native.load(), self.full_name(unit_name)
        return None if core.unit_is_compressed(self.full_patterns, name) else core.Reason.NOT_PREPARED

    def full_names(self) -> list[str]:
        """Return the full names of the units, of DDP's those that were reduced."""
        units = (self.full_name(unit.name) for unit in self.units.values())
        return sorted({*units, *(bucket for bucket, _ in self.bucket_passes)})

    def expect(self, bucket: str, layout: Layout) -> None:
        """Note a bucket's layout from a checkpoint, after which no rebuild is expected."""
        self.bucket_passes[self.full_name(bucket), layout.hash] = PASSES_BEFORE_REBUILD


# Who has taken a name and number. The dead keep theirs: a rank may keep a model that others dropped.
_taken: weakref.WeakKeyDictionary[dist.ProcessGroup, dict[tuple[str, int], int]] = weakref.WeakKeyDictionary()


def forget_names(process_group: dist.ProcessGroup) -> None:
    """Restart the numbers of models that are reduced over a group, as the backend that knew their names is gone."""
    _taken.pop(process_group, None)


@dataclass
class PreparedUnit:
    """A unit of a model. Refers to none of torch's objects that reduce it, so that it keeps none alive."""

    unit: Unit
    prepared: Prepared | None = None  # None: nobody prepared it
    exact: _C.Reason | None = None  # why it is exact: by its name, and of FSDP1 because of copies
    collectives: tuple[Any, Any] | None = None  # FSDP2's own, where Isthmus's took their place
    kept: str = ""  # why it keeps its own collectives

    @property
    def name(self) -> str:
        """Its name without the number among models of equal names, "" if its reductions name it."""
        return self.prepared.base_name(self.unit.name) if self.prepared is not None and self.unit.name else ""

    @property
    def full_name(self) -> str:
        """The name under which a backend knows the unit, "" if its reductions name it."""
        return self.prepared.full_name(self.unit.name) if self.prepared is not None and self.unit.name else ""


# By FSDP2's object, FSDP1's handle or the DTensor that is reduced.
prepared_units: MutableMapping[Any, PreparedUnit] = WeakIdKeyDictionary()


# --- Reductions ---


class Described(NamedTuple):
    """What a reduction tells of its unit."""

    name: str
    sections: _C.Sections | None = None  # of the parameters that are trained, where rows of them are reduced
    with_gradients: _C.Sections | None = None  # of those that have gradients, where some have none
    exact: _C.Reason | None = None


# Of FSDP2's objects, why copies keep their reductions exact, and their sections by the indexes of parameters.
_known: weakref.WeakKeyDictionary[ParamGroup, tuple[_C.Reason | None, dict[tuple[int, ...], Any]]]
_known = weakref.WeakKeyDictionary()


def describe(group: ParamGroup, indexes: tuple[int, ...]) -> Described:
    """Describe a reduction by a unit of FSDP2 whose parameters with these indexes have gradients."""
    if group not in _known:
        _known[group] = why_fsdp2_is_exact(group), {}
    why_copies, sections = _known[group]
    trained = trainable_indexes(group)
    for some in (trained, indexes):
        if some not in sections:
            sections[some] = native.load().Sections([(index, section_elements(group, index)) for index in some])
    found = prepared_units.get(group)
    name, exact = (label_of(group), None) if found is None else (found.full_name, found.exact)
    return Described(name, sections[trained], None if indexes == trained else sections[indexes], exact or why_copies)


def unit_of(owner: Any, backend: _C.Backend) -> _C.Unit:
    """Return the unit of one of FSDP2's objects, or of what `prepared_units` has, in a process group."""

    def make() -> _C.Unit:
        found = prepared_units.get(owner)
        if found is None:  # FSDP2's, of another backend, in a hook
            return backend.unit(label_of(owner))
        layout = found.unit.layout()
        if found.unit.in_rows:  # each call says which rows
            return backend.unit(found.full_name, parameters=layout.to_json())
        return backend.unit(found.full_name, layout.hash, found.exact, layout.to_json())

    return held_unit(owner, backend, make)


def call_of(group: ParamGroup, indexes: tuple[int, ...], backend: _C.Backend) -> _C.UnitCall:
    """Return how the native module is told of a reduction that `describe` describes."""
    _, sections, with_gradients, exact = describe(group, indexes)
    made: _C.UnitCall = native.load().UnitCall(unit_of(group, backend), sections, with_gradients, exact)
    return made
