"""Which unit a reduction or a gather of FSDP belongs to, in the native module's form.

A unit's own collectives know it. Else FSDP is found on the stack of the call (torch_private/callers.py).
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from isthmus import native
from isthmus.torch_private.callers import hooked_reduction_of, reduction_of
from isthmus.torch_private.models import ParamGroup, section_elements, trainable_indexes
from isthmus.units.copies import why_fsdp2_is_exact
from isthmus.units.models import label_of
from isthmus.units.owners import number_of
from isthmus.units.prepared import units_of_groups

if TYPE_CHECKING:
    from isthmus import _C

# The native module's form of a unit: name, layout, why it is exact, owner, sections.
Tag = tuple[str, int, "_C.Reason | None", int, Any]


@dataclass
class _Known:
    """What is known about one of FSDP2's objects."""

    number: int
    exact: _C.Reason | None  # why copies keep its reductions exact
    sections: dict[tuple[int, ...], Any] = field(default_factory=dict)  # by the indexes of parameters


_known: weakref.WeakKeyDictionary[ParamGroup, _Known] = weakref.WeakKeyDictionary()


def fsdp_hook_caller(tensor: torch.Tensor) -> Tag | None:
    """Return the unit of FSDP2 whose all-reduce hook reduces this shard, None if none does."""
    found = hooked_reduction_of(tensor)
    return tag_of(*found) if found is not None else None


def handed_reduction(
    group: ParamGroup, shards: dist.ProcessGroup | None, output: torch.Tensor, input: torch.Tensor
) -> Tag:
    """Return the unit of a reduction that FSDP2 makes by a prepared unit's own collective. shards: its `shard_group`.

    The input's size tells whether all trainable parameters have gradients; only if not, this searches the stack.
    """
    tag = tag_of(group, trainable_indexes(group))
    if shards is None or tag[-1].row_elements * shards.size() != input.numel():
        found = reduction_of(output, input)
        if found is None or found[0] is not group:
            name, layout, _, owner, _ = tag
            return name, layout, native.load().Reason.UNKNOWN_SET, owner, None
        tag = tag_of(*found)
    return tag


def tag_of(group: ParamGroup, indexes: tuple[int, ...]) -> Tag:
    """Return the tag of a unit of FSDP2 whose parameters with these indexes have gradients."""
    known = _known.get(group)
    if known is None:
        known = _known[group] = _Known(number_of(group), why_fsdp2_is_exact(group))
    sections = known.sections.get(indexes)
    if sections is None:
        pairs = [(index, section_elements(group, index)) for index in indexes]
        sections = known.sections[indexes] = native.load().Sections(pairs)
    found = units_of_groups.get(group)
    if found is None:  # of another backend, in a hook
        return label_of(group), 0, known.exact, known.number, sections
    return found.full_name, 0, found.exact or known.exact, known.number, sections
