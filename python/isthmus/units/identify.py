"""Tells the native module which unit a reduction is of that FSDP labels, and whose weights a gather is of.

FSDP reduces and gathers from Python, so the object of its unit is on the stack of the call. That also holds with
several models, with garbage collection at any time, and for a unit that reduces several times.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import threading
import weakref
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch.utils.weak import WeakIdKeyDictionary

from isthmus import native
from isthmus.units.models import (
    ParamGroup,
    flat_mixes_replicas,
    gathering_object,
    mixes_replicas,
    reducing_group,
    trainable_indexes,
)
from isthmus.units.prepare import elements_of, tag_of, weights_name


@dataclass(frozen=True)
class _Owner:
    """The constant properties of one of FSDP2's objects."""

    number: int  # never given again
    exact: str  # why its reductions must stay exact, "" if they need not


_owners: weakref.WeakKeyDictionary[ParamGroup, _Owner] = weakref.WeakKeyDictionary()
_numbers = itertools.count(1)


def fsdp2_caller() -> tuple[int, str, int, str]:
    """Return owner, name, layout and why it is exact ("": it need not be) of the unit that FSDP2 is reducing.

    The owner is a number of this process, 0 if FSDP2's object is not on the stack. The name is "" unless the unit was
    prepared. The layout is 0 if nothing names the parameters, and all that can have gradients do.
    """
    found = reducing_group()
    return (0, "", 0, "") if found is None else _describe(*found)


# Of a unit that is reduced without some of its parameters, where the call's stack does not tell which.
UNKNOWN_PARAMETERS = "which parameters have gradients is not known"


def handed_reduction(group: ParamGroup, num_elements: int) -> tuple[str, int, str]:
    """Return name, layout and why it is exact of a reduction that FSDP2 hands to a prepared unit's own collective.

    Its size tells whether all parameters have gradients that can; only if not, the stack is asked.
    """
    indexes = trainable_indexes(group)
    if elements_of(group, indexes) != num_elements:
        found = reducing_group()
        if found is None or found[0] is not group:
            _, name, layout, _ = _describe(group, indexes)
            return name, layout, UNKNOWN_PARAMETERS
        indexes = found[1]
    _, name, layout, exact = _describe(group, indexes)
    return name, layout, exact


def _describe(group: ParamGroup, indexes: tuple[int, ...]) -> tuple[int, str, int, str]:
    owner = _owners.get(group)
    if owner is None:
        exact = native.load().REPLICAS if mixes_replicas(group) else ""
        owner = _owners[group] = _Owner(next(_numbers), exact)
    tag = tag_of(group, indexes)
    if tag is not None:
        name, layout, exact = tag
        return owner.number, name, layout, exact or owner.exact
    layout = 0 if indexes == trainable_indexes(group) else _hash(indexes)
    return owner.number, "", layout, owner.exact


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
        native.load().forget_weights_of(owner.number)
        owner = None
    if owner is None:
        owner = _gatherers[gatherer] = _Gatherer(next(_numbers), name)
        weakref.finalize(gatherer, native.load().forget_weights_of, owner.number).atexit = False
    return owner.number, name


def why_fsdp1_is_exact(flat_parameter: torch.Tensor) -> str:
    """Return why FSDP1's reductions of this flat parameter must stay exact, "" if they need not."""
    return native.load().REPLICAS if flat_mixes_replicas(flat_parameter) else ""


@functools.lru_cache(maxsize=4096)
def _hash(indexes: tuple[int, ...]) -> int:
    """Return a hash for a layout of parameters without names, by their places in the unit; never 0."""
    digest = hashlib.blake2b(",".join(map(str, indexes)).encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 1) or 1
