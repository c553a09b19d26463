"""Tells apart FSDP2 units that share a label: what the native module asks for reductions that nothing tagged."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch import nn

from isthmus import _backends, _models
from isthmus._models import ParamGroup

if TYPE_CHECKING:
    from isthmus import _C


@dataclass
class _Unit:
    """An FSDP2 unit that was alive and had a name when the table was made."""

    group: weakref.ref[ParamGroup]
    process_group: weakref.ref[dist.ProcessGroup]
    trainable: tuple[bool, ...]  # by parameter
    num_elements: int  # of a reduction over `process_group` in which all of these have gradients

    def is_unchanged(self) -> bool:
        group = self.group()
        return group is None or _models.trainable_flags(group) == self.trainable

    def is_of(self, backend: Any) -> bool:
        process_group = self.process_group()
        return process_group is not None and _backends.isthmus_backend(process_group) is backend

    def mixes_replicas(self) -> bool:
        group = self.group()
        return group is not None and _models.mixes_replicas(group)


@dataclass
class _Answer:
    unit: _Unit
    ordinal: int  # or _REPLICAS

    def holds_for(self, backend: Any) -> bool:
        return self.unit.group() is not None and self.unit.is_of(backend)


@dataclass
class _Table:
    """The live units, until a module is added or parameters are frozen or thawed.

    That a unit goes away changes no answer about another.
    """

    modules: dict[int, weakref.ref[nn.Module]] = field(default_factory=dict)
    nameless: list[weakref.ref[ParamGroup]] = field(default_factory=list)  # no forward pass yet
    units: dict[str, list[_Unit]] = field(default_factory=dict)  # by label
    answers: dict[tuple[str, int], list[_Answer]] = field(default_factory=dict)

    def is_current(self, label: str) -> bool:
        newest = next(reversed(_models.module_states()), None)
        return (
            (newest is None or id(newest) in self.modules)
            and all((group := entry()) is None or _models.fqn_of(group) is None for entry in self.nameless)
            and all(unit.is_unchanged() for unit in self.units.get(label, ()))
        )


@dataclass
class _Ambiguity:
    """Several live units share a label and size. Whether they still do is asked again after 1, 2, 4, ... calls."""

    calls: int = 0
    next_check: int = 1


@dataclass
class _History:
    """What was asked about one process group. By label and size."""

    seen: dict[tuple[str, int], list[weakref.ref[ParamGroup]]] = field(default_factory=dict)  # by first appearance
    ambiguous: dict[tuple[str, int], _Ambiguity] = field(default_factory=dict)


_table = _Table()
_histories: weakref.WeakKeyDictionary[dist.ProcessGroup, _History] = weakref.WeakKeyDictionary()
# An answer must not depend on when a rank's garbage collector runs. It is therefore called before units count as
# several, which takes tens of milliseconds: at most so many calls later again.
_LONGEST_WAIT = 256

# What the native module is told instead of an ordinal.
_SEVERAL = -1
_REPLICAS = -2


def identify(backend: _C.Backend, label: str, num_elements: int) -> int:
    """Return which of the FSDP2 units of one label and size this is, counted over all that ever were: 0, 1, ...

    `num_elements` is that of the reduction. -1: several that are alive share label and size. -2: it must stay exact, as
    it mixes replicas with parameters that are split. 0 as well where torch does not tell. All ranks get the same answer
    as long as they make, use and drop models alike.
    """
    key = (label, num_elements)
    if not _table.is_current(label):
        _rebuild()
    for answer in _table.answers.get(key, ()):
        if answer.holds_for(backend):
            return answer.ordinal
    candidates = _candidates(backend, label, num_elements)
    if not candidates:
        return 0
    history = _history_of(candidates[0])
    if (ambiguity := history.ambiguous.get(key)) is not None:
        ambiguity.calls += 1
        if ambiguity.calls < ambiguity.next_check:
            return _SEVERAL
        ambiguity.next_check += min(ambiguity.next_check, _LONGEST_WAIT)
    if ambiguity is not None or len(candidates) > 1:
        gc.collect()
        candidates = _candidates(backend, label, num_elements)
    if len(candidates) != 1:
        history.ambiguous.setdefault(key, _Ambiguity())
        return _SEVERAL
    history.ambiguous.pop(key, None)
    (unit,) = candidates
    ordinal = _REPLICAS if unit.mixes_replicas() else _ordinal(unit, history.seen.setdefault(key, []))
    answers = _table.answers.setdefault(key, [])
    answers[:] = [answer for answer in answers if not answer.unit.is_of(backend)]
    answers.append(_Answer(unit, ordinal))
    return ordinal


def _candidates(backend: Any, label: str, num_elements: int) -> list[_Unit]:
    """Return the live units of that label in the group of `backend` that may have issued such a reduction."""
    units = [unit for unit in _table.units.get(label, ()) if unit.group() is not None and unit.is_of(backend)]
    same_size = [unit for unit in units if unit.num_elements == num_elements]
    # A smaller reduction is one in which some parameters have no gradient.
    return same_size or [unit for unit in units if unit.num_elements > num_elements] or units


def _history_of(unit: _Unit) -> _History:
    process_group = unit.process_group()
    assert process_group is not None  # the caller has just found it alive
    return _histories.setdefault(process_group, _History())


def _ordinal(unit: _Unit, seen: list[weakref.ref[ParamGroup]]) -> int:
    if unit.group not in seen:  # references are equal if their living objects are
        seen.append(unit.group)
    return seen.index(unit.group)


def _rebuild() -> None:
    global _table
    _table = _Table(modules={id(entry): entry for entry in list(_models.module_states())})
    for group in _models.live_param_groups():
        name = _models.fqn_of(group)
        if name is None:
            _table.nameless.append(weakref.ref(group))
        else:
            _table.units.setdefault(name, []).extend(_units(group))


def _units(group: ParamGroup) -> Iterator[_Unit]:
    trainable = _models.trainable_flags(group)
    num_elements = _models.num_elements_of(group, _models.trainable_params(group))
    shards = _models.shard_group(group)
    replicas = _models.replicate_group(group)
    if shards is not None:
        yield _Unit(weakref.ref(group), weakref.ref(shards), trainable, num_elements)
    if replicas is not None:
        num_shards = shards.size() if shards is not None else 1
        yield _Unit(weakref.ref(group), weakref.ref(replicas), trainable, num_elements // num_shards)
