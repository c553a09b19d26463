"""Tells the native module which unit a reduction is of that FSDP labels, and whose weights a gather is of.

FSDP reduces and gathers from Python, so the object of its unit is on the stack of the call. That also holds with
several models, with garbage collection at any time, and for a unit that reduces several times.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from isthmus import native
from isthmus.units.models import (
    ParamGroup,
    flat_mixes_replicas,
    gathering_object,
    mixes_replicas,
    reducing_group,
    reducing_handle,
    section_elements,
    shard_group,
    trainable_indexes,
)
from isthmus.units.owners import forget_with, new_number, number_of
from isthmus.units.prepare import tag_of, weights_name

# As the native module takes a unit: name, layout, why it is exact, owner, sections.
Tag = tuple[str, int, str, int, Any]

UNKNOWN: Tag = ("", 0, "", 0, None)


@dataclass
class _Known:
    """What is known of one of FSDP2's objects."""

    number: int
    exact: str  # why its reductions must stay exact, "" if they need not
    sections: dict[tuple[int, ...], Any] = field(default_factory=dict)  # by places of parameters


_known: weakref.WeakKeyDictionary[ParamGroup, _Known] = weakref.WeakKeyDictionary()


def fsdp2_caller() -> Tag:
    """Return the unit that FSDP2 is reducing. Its name is "" unless the unit was prepared.

    The owner is 0 if FSDP2's object is not on the stack.
    """
    found = reducing_group()
    return UNKNOWN if found is None else _describe(*found)


# Of a unit that is reduced without some of its parameters, where the call's stack does not tell which.
UNKNOWN_PARAMETERS = "which parameters have gradients is not known"


def handed_reduction(group: ParamGroup, num_elements: int) -> Tag:
    """Return the unit of a reduction that FSDP2 hands to a prepared unit's own collective.

    Its size tells whether all parameters have gradients that can; only if not, the stack is asked.
    """
    tag = _describe(group, trainable_indexes(group))
    shards = shard_group(group)
    if shards is None or tag[-1].row_elements * shards.size() != num_elements:
        found = reducing_group()
        if found is None or found[0] is not group:
            name, layout, _, owner, _ = tag
            return name, layout, UNKNOWN_PARAMETERS, owner, None
        tag = _describe(*found)
    return tag


def _describe(group: ParamGroup, indexes: tuple[int, ...]) -> Tag:
    known = _known.get(group)
    if known is None:
        exact = native.load().REPLICAS if mixes_replicas(group) else ""
        known = _known[group] = _Known(number_of(group), exact)
    sections = known.sections.get(indexes)
    if sections is None:
        pairs = [(index, section_elements(group, index)) for index in indexes]
        sections = known.sections[indexes] = native.load().Sections(pairs)
    name, exact = tag_of(group) or ("", "")
    return name, 0, exact or known.exact, known.number, sections


@dataclass(frozen=True)
class _Gatherer:
    """What gathers its parameters under a name."""

    number: int  # never given again
    name: str


_gatherers: MutableMapping[object, _Gatherer] = WeakIdKeyDictionary()


class _Handed(threading.local):
    """The unit that handed a gather to this thread."""

    gatherer: object | None = None


_handed = _Handed()


@contextmanager
def gathering(gatherer: object) -> Iterator[None]:
    """Gathers of this thread in the block are of the parameters of `gatherer`, whatever is on the stack."""
    before, _handed.gatherer = _handed.gatherer, gatherer
    try:
        yield
    finally:
        _handed.gatherer = before


def weights_caller() -> tuple[int, str]:
    """Return owner and name of the unit whose parameters are being gathered.

    The owner is a number of this process, another one under another name; 0 if it is not on the stack: then the gather
    is none of parameters, for all that is known. The name is equal on all ranks.
    """
    gatherer = _handed.gatherer if _handed.gatherer is not None else gathering_object()
    if gatherer is None:
        return 0, ""
    name = weights_name(gatherer)
    if name is None:
        return 0, ""
    owner = _gatherers.get(gatherer)
    # FSDP2 names a unit in its first forward pass, and prepare may come later.
    if owner is not None and owner.name != name:
        native.load().forget_owner(owner.number)
        owner = None
    if owner is None:
        owner = _gatherers[gatherer] = _Gatherer(new_number(), name)
        forget_with(gatherer, owner.number)
    return owner.number, name


def fsdp1_caller(flat_parameter: torch.Tensor) -> Tag:
    """Return the unit of a flat parameter that FSDP1 is reducing and that was not prepared: it has no name."""
    exact = native.load().REPLICAS if flat_mixes_replicas(flat_parameter) else ""
    handle = reducing_handle()
    return "", 0, exact, 0 if handle is None else number_of(handle), None
