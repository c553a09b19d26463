"""Which unit FSDP reduces or gathers, as the native module is told of it.

A unit's own collectives know it. Else FSDP is found on the stack of the call (torch_private/callers.py).
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

from isthmus.base import native
from isthmus.model.copies import why_fsdp2_is_exact
from isthmus.model.models import held_unit, label_of
from isthmus.model.units import prepared_units
from isthmus.torch_private.models import ParamGroup, section_elements, trainable_indexes

if TYPE_CHECKING:
    from isthmus import _C


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
        layout = found.layout()
        if found.in_rows:  # each call says which rows
            return backend.unit(found.full_name, parameters=layout.to_json())
        return backend.unit(found.full_name, layout.hash, found.exact, layout.to_json())

    return held_unit(owner, backend, make)


def call_of(group: ParamGroup, indexes: tuple[int, ...], backend: _C.Backend) -> _C.UnitCall:
    """Return how the native module is told of a reduction that `describe` describes."""
    _, sections, with_gradients, exact = describe(group, indexes)
    made: _C.UnitCall = native.load().UnitCall(unit_of(group, backend), sections, with_gradients, exact)
    return made
