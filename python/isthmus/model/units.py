"""Units of models, and the record of a prepared model: the names of its units, and their layouts."""

from __future__ import annotations

import itertools
import re
import weakref
from collections import Counter
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.utils.weak import WeakIdKeyDictionary

from isthmus.base import native
from isthmus.model.layout import Layout, Parameter, concatenated, rows

if TYPE_CHECKING:
    from isthmus import _C
    from isthmus.model.prefetch import Prefetch


@dataclass(eq=False)
class Unit:
    """Parameters that a model reduces together. Refers to nothing that reduces it, and so keeps no model alive."""

    name: str  # in the model: "blocks.0", "root"; "" of DDP, whose reductions name its buckets
    parameters: tuple[Parameter, ...]  # with padding between them
    in_rows: bool = False  # FSDP2
    shard_group: dist.ProcessGroup | None = None
    other_groups: tuple[dist.ProcessGroup, ...] = ()  # that it is reduced over
    prepared: Prepared | None = None  # None: nobody prepared it
    exact: _C.Reason | None = None  # why it is exact: by its name, and of FSDP1 because of copies
    collectives: tuple[Any, Any] | None = None  # FSDP2's own, where Isthmus's took their place
    kept: str = ""  # why it keeps its own collectives

    @property
    def process_groups(self) -> list[dist.ProcessGroup]:
        """Return the groups that the unit is reduced over."""
        return [group for group in (self.shard_group, *self.other_groups) if group is not None]

    def layout(self) -> Layout:
        """Return the layout of a reduction in which all parameters have gradients."""
        num_shards = self.shard_group.size() if self.shard_group is not None else 1
        return (rows if self.in_rows else concatenated)(self.parameters, num_shards)

    @property
    def base_name(self) -> str:
        """Its name without the number among models of equal names, "" if its reductions name it."""
        return self.prepared.base_name(self.name) if self.prepared is not None and self.name else ""

    @property
    def full_name(self) -> str:
        """The name under which a backend knows the unit, "" if its reductions name it."""
        return self.prepared.full_name(self.name) if self.prepared is not None and self.name else ""


def numbered(name: str, num_earlier: int) -> str:
    """Return the name of a unit before which so many had that name: "blocks.0 (2)" if one had."""
    return f"{name} ({num_earlier + 1})" if num_earlier else name


def split_name(name: str) -> tuple[str, int]:
    """Return a unit's name without the number that tells apart models of equal names, "blocks.0 (2)"; and that."""
    found = re.fullmatch(r"(.*?)(?: \((\d+)\))?", name, re.DOTALL)
    assert found is not None  # any text matches
    return found[1], int(found[2] or 1)


# By FSDP2's object, FSDP1's handle or the DTensor that is reduced.
prepared_units: MutableMapping[Any, Unit] = WeakIdKeyDictionary()

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
        return numbered(self.base_name(unit_name), self.number)

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
