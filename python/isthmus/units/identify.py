"""Tells the native module which unit of FSDP a reduction belongs to, if any, and whose weights a gather collects.

FSDP reduces and gathers from Python, so the object of its unit and the tensors that it reduces are on the stack of the
call. This also holds with several models, with garbage collection at any time, and for a unit that reduces several
times. Users' hooks also have FSDP on their stack, but other tensors, or they are between FSDP and the collective.
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
from isthmus.units.callers import gathering_object, hooked_reduction_of, reduction_of
from isthmus.units.copies import why_fsdp1_is_exact, why_fsdp2_is_exact
from isthmus.units.models import (
    ParamGroup,
    label_of,
    section_elements,
    shard_group,
    trainable_indexes,
)
from isthmus.units.owners import forget_with, new_number, number_of
from isthmus.units.prepared import tag_of, weights_name

# The native module's form of a unit: name, layout, why it is exact, owner, sections.
Tag = tuple[str, int, str, int, Any]


@dataclass
class _Known:
    """What is known about one of FSDP2's objects."""

    number: int
    exact: str  # why copies keep its reductions exact, "" if they do not
    sections: dict[tuple[int, ...], Any] = field(default_factory=dict)  # by the indexes of parameters


_known: weakref.WeakKeyDictionary[ParamGroup, _Known] = weakref.WeakKeyDictionary()


def fsdp_caller(output: torch.Tensor, input: torch.Tensor) -> tuple[Tag, bool, torch.Tensor | None] | None:
    """Return the unit that FSDP is reducing, whether its name is FSDP2's own, and FSDP1's flat parameter.

    None if FSDP does not reduce these tensors. Several units may have the same name of FSDP2's own. The flat parameter
    stands for the name of FSDP1's unit; FSDP2 has none. All-reduces pass one tensor as both output and input.
    """
    found = reduction_of(output, input)
    if found is None:
        return None
    reducer, parameters = found
    if isinstance(parameters, tuple):
        return _describe(reducer, parameters), tag_of(reducer) is None, None
    handle = reducer._handle
    flat = handle.flat_param
    return ("", 0, why_fsdp1_is_exact(flat, reducer), number_of(handle), None), False, flat


def fsdp_hook_caller(tensor: torch.Tensor) -> Tag | None:
    """Return the unit of FSDP2 whose all-reduce hook reduces this shard, None if none does."""
    found = hooked_reduction_of(tensor)
    return _describe(*found) if found is not None else None


# Why a unit stays exact if some parameters have no gradients and the call's stack does not tell which.
UNKNOWN_PARAMETERS = "which parameters have gradients is not known"


def handed_reduction(group: ParamGroup, output: torch.Tensor, input: torch.Tensor) -> Tag:
    """Return the unit of a reduction that FSDP2 makes by a prepared unit's own collective.

    The input's size tells whether all trainable parameters have gradients; only if not, this searches the stack.
    """
    tag = _describe(group, trainable_indexes(group))
    shards = shard_group(group)
    if shards is None or tag[-1].row_elements * shards.size() != input.numel():
        found = reduction_of(output, input)
        if found is None or found[0] is not group:
            name, layout, _, owner, _ = tag
            return name, layout, UNKNOWN_PARAMETERS, owner, None
        tag = _describe(*found)
    return tag


def _describe(group: ParamGroup, indexes: tuple[int, ...]) -> Tag:
    known = _known.get(group)
    if known is None:
        known = _known[group] = _Known(number_of(group), why_fsdp2_is_exact(group))
    sections = known.sections.get(indexes)
    if sections is None:
        pairs = [(index, section_elements(group, index)) for index in indexes]
        sections = known.sections[indexes] = native.load().Sections(pairs)
    name, exact = tag_of(group) or (label_of(group), "")
    return name, 0, exact or known.exact, known.number, sections


@dataclass(frozen=True)
class _Gatherer:
    """An object that gathers its parameters, and its name."""

    number: int  # never reused
    name: str


_gatherers: MutableMapping[object, _Gatherer] = WeakIdKeyDictionary()


class _Handed(threading.local):
    """The unit that handed a gather to this thread, and whether in halves."""

    gather: tuple[object | None, bool] = (None, False)


_handed = _Handed()


@contextmanager
def gathering(gatherer: object, in_halves: bool) -> Iterator[None]:
    """Attribute this thread's gathers in the block to `gatherer`, whatever is on the stack.

    in_halves: the second half of such a gather is done when its Work is waited for (docs/weights.md).
    """
    before, _handed.gather = _handed.gather, (gatherer, in_halves)
    try:
        yield
    finally:
        _handed.gather = before


def weights_caller() -> tuple[int, str, bool]:
    """Return the owner and the name of the unit whose parameters are being gathered, and whether in halves.

    The owner is a number of this process, and changes with the name. It is 0 if no owner is on the stack: then the call
    is not known to gather parameters. The name is equal on all ranks.
    """
    gatherer, in_halves = _handed.gather
    if gatherer is None:
        gatherer = gathering_object()
    name = weights_name(gatherer) if gatherer is not None else None
    if name is None:
        return 0, "", False
    owner = _gatherers.get(gatherer)
    # FSDP2 names a unit in its first forward pass, and prepare may come later.
    if owner is not None and owner.name != name:
        native.load().forget_owner(owner.number)
        owner = None
    if owner is None:
        owner = _gatherers[gatherer] = _Gatherer(new_number(), name)
        forget_with(gatherer, owner.number)
    return owner.number, name, in_halves
