"""Groups of Isthmus beside groups of other backends, which all ranks of the job make together."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist

from isthmus.base import native
from isthmus.base.backends import Companion, backend_of, beside, companion_of, companions, has_two_tiers
from isthmus.base.error_reports import on_all
from isthmus.group.nodes.node_map import different_options, name_ranks, ranks_by_value, told_by_ranks
from isthmus.model.units import forget_names
from isthmus.torch_private.groups import backends_by_device, timeout_of

if TYPE_CHECKING:
    from isthmus import _C

Result = TypeVar("Result")
Ranks = tuple[int, ...]


# --- Agreement ---


def on_all_ranks(work: Callable[[], Result]) -> list[Result]:
    """Do `work` on every rank of the job; return all ranks' results. If it fails on one, all raise ValueError."""
    error: Exception | None = None
    result, text = None, ""
    try:
        result = work()
    except Exception as caught:
        error, text = caught, str(caught) or type(caught).__name__
    answers: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(answers, (result, text))
    complaint = told_by_ranks(range(len(answers)), [text for _, text in answers])
    if complaint:
        raise on_all(ValueError(f"isthmus.attach: {complaint}"), dist.get_rank()) from error
    return [result for result, _ in answers]


@dataclass(frozen=True)
class Wish:
    """What one rank of the job asks for."""

    options: Mapping[str, str]
    is_attached: bool  # the model is attached already, and needs nothing
    groups: tuple[Ranks, ...] = ()  # the ranks of groups that need a companion; two groups may have equal ranks


def disagreement(wishes: Sequence[Wish]) -> str:
    """Return why these wishes cannot all be met, "" if they can: the same text on every rank."""
    attached = ranks_by_value(range(len(wishes)), [wish.is_attached for wish in wishes])
    if len(attached) > 1:
        return f"the model is attached already on {name_ranks(attached[True])}, not on {name_ranks(attached[False])}"
    if differing := different_options(range(len(wishes)), [wish.options for wish in wishes]):
        return differing
    for ranks, ordinal in wanted_groups(wishes):
        missing = [rank for rank in ranks if (ranks, ordinal) not in numbered(wishes[rank].groups)]
        if missing:
            return f"the model of {name_ranks(missing)} is not over the group of {name_ranks(ranks)}, as others' are"
    return ""


def numbered(groups: Sequence[Ranks]) -> list[tuple[Ranks, int]]:
    """Number groups of equal ranks in their order, which is the same on all ranks, to tell them apart."""
    return [(ranks, groups[:index].count(ranks)) for index, ranks in enumerate(groups)]


def wanted_groups(wishes: Iterable[Wish]) -> list[tuple[Ranks, int]]:
    """Return all groups that any rank asks for, in one order on all ranks."""
    return list(dict.fromkeys(key for wish in wishes for key in numbered(wish.groups)))


# --- Companions ---


def make_companions(wishes: Sequence[Wish], own: Sequence[dist.ProcessGroup], options: _C.Options) -> None:
    """Make the groups that all ranks ask for. `own`: the groups that this rank asks for, in its wish's order.

    All ranks of the job call it, with the same wishes. If a group cannot be made, it makes the others, so that no rank
    waits for this one, and then raises ValueError.
    """
    by_key = dict(zip(numbered(wishes[dist.get_rank()].groups), own, strict=True))
    errors = []
    for key in wanted_groups(wishes):
        group = by_key.get(key)
        timeout = _timeout_of(group) if group is not None else None
        ranks, _ = key
        token = beside.set(group)
        try:
            companion = dist.new_group(
                list(ranks), timeout=timeout, backend="isthmus", pg_options=options, group_desc="isthmus.attach"
            )
        except Exception as error:
            errors.append(str(error).removeprefix("isthmus: "))
            continue
        finally:
            beside.reset(token)
        if group is not None:
            assert isinstance(companion, dist.ProcessGroup)  # this rank is in it
            companions[group] = Companion(weakref.ref(companion), wishes[0].options)
    if errors:
        raise ValueError("; ".join(dict.fromkeys(errors)))


# Whether torch has ranks outside of a new group split the default group's communicator whatever backend the group has.
_SPLITS_FOR_OTHER_BACKENDS = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15)


def why_companions_would_hang(groups: Iterable[Ranks]) -> str:
    """Return why torch cannot make companions over these groups of ranks, "" if it can."""
    world = dist.group.WORLD
    device = world.bound_device_id if world is not None else None
    if not _SPLITS_FOR_OTHER_BACKENDS or world is None or device is None:
        return ""
    outside = [ranks for ranks in groups if len(ranks) < world.size()]
    if not outside or not backends_by_device(world)[device.type].supports_splitting:
        return ""
    return (
        f"torch {torch.__version__} would hang: the default group is bound to {device}, and ranks outside of the group "
        f"of {name_ranks(outside[0])} would split its communicator while those inside make one of Isthmus. Call "
        "init_process_group without device_id, or take torch 2.15"
    )


def _timeout_of(group: dist.ProcessGroup) -> timedelta | None:
    """Return the timeout of a group, None if its backend does not tell it."""
    for backend in backends_by_device(group).values():
        options = getattr(getattr(backend, "wrapped_pg", backend), "options", None)
        if options is not None:
            return timeout_of(options)
    return None


def drop_those_within_nodes(groups: Iterable[dist.ProcessGroup]) -> str:
    """Destroy companions without two tiers, which would compress nothing. Return where their ranks are."""
    places = []
    for group in groups:
        if companion_of(group) is None:
            continue
        node_of_rank = backend_of(group).node_of_rank
        if not has_two_tiers(node_of_rank):
            places.append(native.load().describe_nodes(node_of_rank))
            destroy_unused(group)
    return ", ".join(dict.fromkeys(places))


def destroy_unused(group: dist.ProcessGroup) -> None:
    """Destroy the companion of `group` if there is one and no model uses it."""
    if companion_of(group) is not None and companions[group].num_models <= 0:
        forget_names(group)
        dist.destroy_process_group(companions.pop(group).group())
