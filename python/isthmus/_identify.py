"""Finds FSDP2's units, and tells apart those of one label.

FSDP2 has no public view of its units, so the first half of this module reads private attributes of torch; everything
else goes through it. Checked on torch 2.11 and 2.15. Nothing here keeps a model alive.
"""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from isthmus import _layout

if TYPE_CHECKING:
    from isthmus import _C

# FSDP2's own object for what one module reduces together (FSDPParamGroup).
ParamGroup = Any


def unwrapped_backend(group: dist.ProcessGroup) -> Any:
    """Return the backend of a group; TORCH_DISTRIBUTED_DEBUG=DETAIL wraps it. None if it has none for the CPU."""
    try:
        backend = group._get_backend(torch.device("cpu"))
    except RuntimeError:
        return None
    return getattr(backend, "wrapped_pg", backend)


# --- What is private in torch ---


def param_groups_of(module: nn.Module) -> list[ParamGroup]:
    """Return what `module` itself, not its children, reduces under FSDP2: nothing if it is no FSDP2 module."""
    get_state = getattr(module, "_get_fsdp_state", None)
    return _groups_of_state(get_state()) if get_state is not None else []


def _groups_of_state(state: Any) -> list[ParamGroup]:
    if hasattr(state, "_fsdp_param_groups"):  # torch 2.12 and newer
        return list(state._fsdp_param_groups)
    group = getattr(state, "_fsdp_param_group", None)
    return [] if group is None else [group]


@functools.cache
def _module_states() -> Any:
    """Return torch's table of modules with a state of FSDP2 or of others; empty if this torch has none."""
    try:
        from torch.distributed._composable_state import _module_state_mapping
    except ImportError:
        return weakref.WeakKeyDictionary()
    return _module_state_mapping


def _live_param_groups() -> list[ParamGroup]:
    found: dict[int, ParamGroup] = {}
    for entry in list(_module_states().values()):
        state = entry() if isinstance(entry, weakref.ref) else entry
        for group in _groups_of_state(state):
            found[id(group)] = group
    return list(found.values())


def shard_group(group: ParamGroup) -> dist.ProcessGroup | None:
    """Return the process group of the reduce-scatter, if there is one."""
    return getattr(group.mesh_info, "shard_process_group", None)


def replicate_group(group: ParamGroup) -> dist.ProcessGroup | None:
    """Return the process group of HSDP's all-reduce, if there is one."""
    return getattr(group.mesh_info, "replicate_process_group", None)


def shard_rank_and_size(group: ParamGroup) -> tuple[int, int]:
    """Return which chunk of each parameter this rank owns, of how many."""
    info = group.mesh_info
    return getattr(info, "shard_mesh_rank", 0), getattr(info, "shard_mesh_size", 1)


def fqn_of(group: ParamGroup) -> str | None:
    """Return the name in FSDP2's labels: "" for the root, None before the first forward pass."""
    name: str | None = group._module_fqn
    return name


def reduced_params(group: ParamGroup) -> list[Any]:
    """Return FSDP2's objects for the parameters, in the order in which they are reduced (FSDPParam)."""
    params = group.fsdp_params
    order = getattr(group, "_reduce_scatter_param_indices", range(len(params)))  # torch 2.15
    return [params[index] for index in order]


def is_trainable(param: Any) -> bool:
    """Return whether a parameter of FSDP2 may have a gradient."""
    return bool(param.sharded_param.requires_grad)


def parameter_of(param: Any, name: str, part: str) -> _layout.Parameter:
    """Return the description of a parameter of FSDP2; shape is that of the tensor that FSDP2 shards."""
    return _layout.Parameter(name, tuple(param._orig_size), param.fsdp_placement.dim, part)


def owner_of(param: Any) -> tuple[nn.Module, str]:
    """Return the module that holds a parameter of FSDP2, and its name there."""
    return param._module_info.module, param._module_info.param_name


def root_of(group: ParamGroup) -> nn.Module | None:
    """Return the module in which FSDP2's names are; None before the first forward pass."""
    for module in group.modules:
        for state in module._get_fsdp_state()._state_ctx.all_states:
            root: nn.Module = state._modules[0]
            return root
    return None


def unsharded_param(param: Any) -> torch.Tensor | None:
    """Return the tensor that gradients of a parameter of FSDP2 accumulate into; None before the first all-gather."""
    return getattr(param, "_unsharded_param", None)


# --- Layouts of FSDP2's units ---


def layout_of(group: ParamGroup, params: Sequence[Any], names: Sequence[str]) -> _layout.Layout:
    """Return the layout of a reduction in which `params` have gradients; they are named `names`."""
    part = _layout.mesh_part(group.mesh_info.mesh)
    parameters = [parameter_of(param, name, part) for param, name in zip(params, names, strict=True)]
    return _layout.rows(parameters, shard_rank_and_size(group)[1])


def num_elements_of(group: ParamGroup, params: Sequence[Any]) -> int:
    """Return the size of a reduction in which `params` have gradients."""
    parameters = (parameter_of(param, "", "") for param in params)
    return _layout.rows(parameters, shard_rank_and_size(group)[1]).num_elements


def trainable_params(group: ParamGroup) -> list[Any]:
    """Return FSDP2's objects for the parameters that may have gradients, in the order of the reduction."""
    return [param for param in reduced_params(group) if is_trainable(param)]


# --- Telling apart units of one label ---


@dataclass
class _Unit:
    """An FSDP2 unit that was alive and had a name when the table was made."""

    group: weakref.ref[ParamGroup]
    process_group: weakref.ref[dist.ProcessGroup]
    num_elements: int  # of a reduction over `process_group` in which all parameters have gradients

    def is_of(self, backend: Any) -> bool:
        process_group = self.process_group()
        return process_group is not None and unwrapped_backend(process_group) is backend

    def is_trained(self) -> bool:
        group = self.group()
        return group is not None and any(is_trainable(param) for param in group.fsdp_params)


@dataclass
class _Answer:
    unit: _Unit
    ordinal: int
    frozen: list[_Unit]  # units that do not count because nothing in them is trained

    def holds_for(self, backend: Any) -> bool:
        return (
            self.unit.group() is not None
            and self.unit.is_of(backend)
            and not any(unit.is_trained() for unit in self.frozen)
        )


@dataclass
class _Table:
    """The live units, until a module is added. That one goes away changes no answer about another."""

    modules: dict[int, weakref.ref[nn.Module]] = field(default_factory=dict)
    nameless: list[weakref.ref[ParamGroup]] = field(default_factory=list)  # no forward pass yet
    units: dict[str, list[_Unit]] = field(default_factory=dict)  # by label
    answers: dict[tuple[str, int], list[_Answer]] = field(default_factory=dict)

    def is_current(self) -> bool:
        newest = next(reversed(_module_states().data), None)  # of a WeakKeyDictionary: in order of addition
        return (newest is None or id(newest) in self.modules) and all(
            (group := entry()) is None or fqn_of(group) is None for entry in self.nameless
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


def identify(backend: _C.Backend, label: str, num_elements: int) -> int:
    """Return which of the FSDP2 units of one label and size this is, counted over all that ever were: 0, 1, ...

    `num_elements` is that of the reduction. -1: several that are alive share label and size. 0 as well where torch does
    not tell. All ranks get the same answer as long as they make, use and drop models alike.
    """
    key = (label, num_elements)
    if not _table.is_current():
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
            return -1
        ambiguity.next_check += min(ambiguity.next_check, _LONGEST_WAIT)
    if ambiguity is not None or sum(unit.is_trained() for unit in candidates) > 1:
        gc.collect()
        candidates = _candidates(backend, label, num_elements)
    trained = [unit for unit in candidates if unit.is_trained()] or candidates[:1]
    if len(trained) > 1:
        history.ambiguous.setdefault(key, _Ambiguity())
        return -1
    history.ambiguous.pop(key, None)
    ordinal = _ordinal(trained[0], history.seen.setdefault(key, []))
    answers = _table.answers.setdefault(key, [])
    answers[:] = [answer for answer in answers if not answer.unit.is_of(backend)]
    answers.append(_Answer(trained[0], ordinal, [unit for unit in candidates if unit not in trained]))
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
    _table = _Table(modules={id(entry): entry for entry in list(_module_states().data)})
    for group in _live_param_groups():
        name = fqn_of(group)
        if name is None:
            _table.nameless.append(weakref.ref(group))
        else:
            _table.units.setdefault(name, []).extend(_units(group))


def _units(group: ParamGroup) -> Iterator[_Unit]:
    num_elements = num_elements_of(group, trainable_params(group))
    num_rows = shard_rank_and_size(group)[1]
    for process_group, divisor in [(shard_group(group), 1), (replicate_group(group), num_rows)]:
        if process_group is not None:
            yield _Unit(weakref.ref(group), weakref.ref(process_group), num_elements // divisor)
