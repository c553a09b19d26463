"""Finds the backend of a process group, or of the group of Isthmus beside it."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from isthmus.base import native
from isthmus.torch_private.groups import backends_by_device

if TYPE_CHECKING:
    from isthmus import _C


@dataclass
class Companion:
    """The group of Isthmus that `isthmus.attach` made beside a group of another backend."""

    group: weakref.ref[dist.ProcessGroup]  # torch keeps it until it is destroyed
    options: Mapping[str, str]
    # How many models were attached and not detached. Dead ones count: a rank may keep a model that others dropped.
    num_models: int = 0


companions: weakref.WeakKeyDictionary[dist.ProcessGroup, Companion] = weakref.WeakKeyDictionary()

# The group beside which a group of Isthmus is being made.
beside: ContextVar[dist.ProcessGroup | None] = ContextVar("beside", default=None)


def companion_of(group: dist.ProcessGroup) -> dist.ProcessGroup | None:
    """Return the group of Isthmus over the same ranks that `isthmus.attach` made, None if there is none."""
    companion = companions.get(group)
    return companion.group() if companion is not None else None


def group_on_isthmus(group: dist.ProcessGroup) -> dist.ProcessGroup | None:
    """Return `group` if its backend is Isthmus, else its companion or None."""
    return group if _own_backend(group) is not None else companion_of(group)


def isthmus_backend(group: dist.ProcessGroup) -> _C.Backend | None:
    """Return the Isthmus backend, for any device, of `group` or else of its companion; None if neither has one."""
    companion = companion_of(group)
    return _own_backend(group) or (_own_backend(companion) if companion is not None else None)


def backends_of(groups: Iterable[dist.ProcessGroup]) -> dict[_C.Backend, dist.ProcessGroup]:
    """Return the Isthmus backends of these groups, each once, with the first group that has it.

    A companion's backend also counts as the backend of the group beside it.
    """
    found: dict[_C.Backend, dist.ProcessGroup] = {}
    for group in groups:
        if (backend := isthmus_backend(group)) is not None:
            found.setdefault(backend, group)
    return found


def _own_backend(group: dist.ProcessGroup) -> _C.Backend | None:
    core = native.load()
    for backend in backends_by_device(group).values():
        backend = getattr(backend, "wrapped_pg", backend)  # TORCH_DISTRIBUTED_DEBUG=DETAIL wraps it
        if isinstance(backend, core.Backend):
            return backend  # type: ignore[no-any-return]
    return None


def backend_of(group: dist.ProcessGroup | int | None) -> _C.Backend:
    """Return the backend of `group` (default: all ranks) or its companion.

    Raises ValueError if it is not Isthmus or this rank is not in the group; TypeError if `group` is something else.
    """
    if group is None:
        group = dist.group.WORLD
    if group is None:
        raise ValueError("there is no process group: call torch.distributed.init_process_group first")
    if group == dist.GroupMember.NON_GROUP_MEMBER:  # new_group returns this to other ranks, typed as a group
        raise ValueError(
            f"rank {dist.get_rank()} is not in this group: only its members have statistics and state of it"
        )
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(f"group: expected a process group, got {type(group).__name__}")
    backend = isthmus_backend(group)
    if backend is None:
        raise ValueError(f"the backend of this group is {dist.get_backend(group)}, not isthmus")
    return backend


def has_two_tiers(node_of_rank: Sequence[int]) -> bool:
    """Return whether a group of ranks on these nodes is reduced in two tiers: over several nodes of one size."""
    ranks_on_node = Counter(node_of_rank)
    return len(ranks_on_node) > 1 and len(set(ranks_on_node.values())) == 1


def options_from(options: _C.Options | None, keywords: Mapping[str, Any]) -> _C.Options:
    """Return the options given as such or by keywords. Raises ValueError if both are, TypeError for another type."""
    core = native.load()
    if options is None:
        made: _C.Options = core.Options(**keywords)
        return made
    if keywords:
        raise ValueError(f"give options=, or keywords ({', '.join(keywords)}), not both")
    if not isinstance(options, core.Options):
        raise TypeError(f"options: expected isthmus.Options, got {type(options).__name__}")
    given: _C.Options = options
    return given


def agreed_texts(options: _C.Options) -> dict[str, str]:
    """Return the options that all ranks of a group must have alike, as text."""
    return {name: str(getattr(options, name)) for name, *_ in native.load().option_fields() if name != "log"}


def options_without_effect(options: _C.Options) -> list[str]:
    """Return a sentence for each option that was set but has no effect."""
    return [
        f"option {name}={value} has no effect with codec={options.codec}: it is for {users}"
        for name, value, users in options._without_effect()
    ]
