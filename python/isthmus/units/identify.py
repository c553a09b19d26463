"""Tells the native module which unit of FSDP a reduction is of, if it is of one, and whose weights a gather is of.

FSDP reduces and gathers from Python, so the object of its unit and the tensors that it reduces are on the stack of the
call. That also holds with several models, with garbage collection at any time, and for a unit that reduces several
times. Hooks of users have FSDP on their stack, too, but other tensors, or they stand between FSDP and the collective.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch.utils.weak import WeakIdKeyDictionary

from isthmus import native
from isthmus.units.callers import gathering_object, reduction_of
from isthmus.units.copies import why_fsdp1_is_exact
from isthmus.units.models import (
    ParamGroup,
    trainable_indexes,
)
from isthmus.units.prepare import elements_of, tag_of, weights_name


def fsdp_caller(output: torch.Tensor, input: torch.Tensor) -> tuple[str, int, str, torch.Tensor | None] | None:
    """Return name, layout, why it is exact ("": it need not be) and flat parameter of the unit that FSDP is reducing.

    None if FSDP does not reduce these tensors, whatever runs meanwhile. FSDP1: the flat parameter stands for name and
    layout; FSDP2 has none. All-reduces have one tensor, as output and input.
    """
    found = reduction_of(output, input)
    if found is None:
        return None
    unit, parameters = found
    if isinstance(parameters, torch.Tensor):
        return "", 0, why_fsdp1_is_exact(parameters, unit), parameters
    return *tag_of(unit, parameters), None


# Of a unit that is reduced without some of its parameters, where the call's stack does not tell which.
UNKNOWN_PARAMETERS = "which parameters have gradients is not known"


def handed_reduction(group: ParamGroup, output: torch.Tensor, input: torch.Tensor) -> tuple[str, int, str]:
    """Return name, layout and why it is exact of a reduction that FSDP2 hands to a prepared unit's own collective.

    The input's size tells whether all parameters have gradients that can; only if not, the stack is asked.
    """
    indexes = trainable_indexes(group)
    if elements_of(group, indexes) == input.numel():
        return tag_of(group, indexes)
    found = reduction_of(output, input)
    if found is not None and found[0] is group:
        return tag_of(*found)
    name, layout, _ = tag_of(group, indexes)
    return name, layout, UNKNOWN_PARAMETERS


@dataclass(frozen=True)
class _Gatherer:
    """What gathers its parameters under a name."""

    number: int  # never given again
    name: str


_numbers = itertools.count(1)
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
        native.load().forget_weights_of(owner.number)
        owner = None
    if owner is None:
        owner = _gatherers[gatherer] = _Gatherer(next(_numbers), name)
        weakref.finalize(gatherer, native.load().forget_weights_of, owner.number).atexit = False
    return owner.number, name
