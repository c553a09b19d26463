"""Saves and loads residuals: ``isthmus.state_dict``, ``load_state_dict`` and ``load_checkpoint``."""

from __future__ import annotations

import dataclasses
import logging
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch.distributed as dist
from torch import nn

from isthmus.backends import backends_of
from isthmus.group.nodes.node_map import ranks_by_node
from isthmus.job import warn_once
from isthmus.residuals.live_units import LiveUnit, Target, base_name, live_units, named, number_in
from isthmus.residuals.saved_state import (
    RESIDUALS,
    LoadReport,
    SavedGroup,
    SavedUnit,
    Source,
    UnitState,
    check_options,
    option_texts,
    source_of_checkpoint,
    source_of_state,
    tensor_key,
    to_text,
)
from isthmus.torch_private.groups import all_groups
from isthmus.units.layout import Layout
from isthmus.units.models import fsdp2_roots, groups_of
from isthmus.units.owners import living, owners_of
from isthmus.units.prepare import prepare_itself

GroupAndBackend = tuple[dist.ProcessGroup, Any]

logger = logging.getLogger("isthmus")


# --- Process groups and their units ---


def _groups(target: Target) -> list[GroupAndBackend]:
    """Return the target's groups of Isthmus with their backends, in the same order on all ranks."""
    if isinstance(target, nn.Module):
        groups = groups_of(target)
        what = "the model is reduced over no process group of isthmus"
    elif target is None:
        groups = [group for backend, group in backends_of(all_groups()).items() if not backend.beyond_job]
        what = "this process has no process group of isthmus"
    else:
        groups = [target]
        what = f"the backend of this group is {dist.get_backend(target)}, not isthmus"
    found = backends_of(groups)
    if not found:
        raise ValueError(what)
    return [(group, backend) for backend, group in found.items()]


def _owners(target: Target) -> set[int] | None:
    """Return the owners of the target's units, None for all."""
    return owners_of(target) if isinstance(target, nn.Module) else None


# --- Saving ---


def state_dict(model_or_group: Target = None) -> dict[str, Any]:
    """Return this rank's residuals and the units that they belong to.

    It covers the units of a model or of one process group of Isthmus, by default of all. Save it with the model:
    `torch.distributed.checkpoint.save({"isthmus": isthmus.state_dict(model), ...})` or, on every rank, `torch.save`.
    It leaves out models that are gone. Tensors are copies. Call it between steps, on all ranks.
    """
    live = {unit.owner: unit for unit in live_units(model_or_group)}
    rank = dist.get_rank()
    state: dict[str, Any] = {}
    groups = []
    for group_index, (_, backend) in enumerate(_groups(model_or_group)):
        units = []
        for unit_index, unit_state in enumerate(_living_states(backend, _owners(model_or_group))):
            units.append(_describe(unit_state, live.get(unit_state["owner"])))
            for kind in RESIDUALS:
                if unit_state[kind].numel():
                    state[tensor_key(rank, group_index, unit_index, kind)] = unit_state[kind]
        ranks = tuple(backend.global_ranks)
        groups.append(SavedGroup(ranks, tuple(backend.node_of_rank), option_texts(backend), tuple(units)))
    state[f"rank{rank}"] = to_text(groups)
    return state


def _living_states(backend: Any, owners: set[int] | None) -> list[dict[str, Any]]:
    """Return the state of units whose owner is in `owners` (None: is alive), and of units without owners.

    Models of equal names are renumbered in their order, since models that are gone do not count.
    """
    wanted = (living() if owners is None else owners) | {0}
    states: list[dict[str, Any]] = [state for state in backend.unit_states() if state["owner"] in wanted]
    numbers: dict[str, set[int]] = {}
    for state in states:
        numbers.setdefault(base_name(state["name"]), set()).add(number_in(state["name"]))
    for state in states:
        if state["owner"]:
            base = base_name(state["name"])
            number = sorted(numbers[base]).index(number_in(state["name"])) + 1
            state["name"] = base if number == 1 else f"{base} ({number})"
    return states


def _describe(state: Mapping[str, Any], live: LiveUnit | None) -> SavedUnit:
    layout: Layout | None = None
    if live is not None and live.unit is not None:
        layout = live.layout
    elif live is not None and live.prepared is not None:
        layout = live.prepared.layouts.get(state["layout"])
    return SavedUnit(
        **{each.name: state[each.name] for each in dataclasses.fields(UnitState)},
        residual_elements=state["residual"].numel(),
        result_residual_elements=state["result_residual"].numel(),
        parked_values_elements=state["parked_values"].numel(),
        is_owned=state["owner"] != 0,
        parameters=layout.to_json() if layout is not None else None,
    )


# --- Loading ---


def load_state_dict(state: Mapping[str, Any], model_or_group: Target = None) -> LoadReport:
    """Load what `state_dict` returned, on all ranks of the same process groups.

    It drops the residuals that the model, or else the groups, have now. It also drops a saved residual, with a warning,
    if its group has other nodes or ranks than before, or its unit has other parameters. If loading fails on one rank it
    fails on all, and changes nothing.
    """
    return _load(lambda: source_of_state(state), model_or_group)


def load_checkpoint(checkpoint_id_or_reader: Any, model_or_group: Target = None, *, key: str = "isthmus") -> LoadReport:
    """Load what was saved with `torch.distributed.checkpoint.save({key: isthmus.state_dict(...)})`.

    It works like `load_state_dict`. All ranks call it, after the model is wrapped and, if it is to be, prepared.

    It runs no code in a folder, whoever made it. A `StorageReader` of your own reads the checkpoint's metadata itself:
    most of torch's, including FileSystemReader, unpickle it, which runs any code of its author.
    """
    return _load(lambda: source_of_checkpoint(checkpoint_id_or_reader, key), model_or_group)


def _load(open_source: Callable[[], Source], target: Target) -> LoadReport:
    groups = _groups(target)
    for root in fsdp2_roots(target) if isinstance(target, nn.Module) else ():
        prepare_itself(root)  # what was saved then finds its unit
    owners = _owners(target)
    before = [backend.unit_states() for _, backend in groups]
    for _, backend in groups:
        backend.clear_units(owners)
    error: Exception | None = None
    try:
        report = _load_into(open_source(), groups, live_units(target), is_of_model=isinstance(target, nn.Module))
    except Exception as caught:
        error = caught
    errors = _exchange_errors(groups, error)
    if errors:
        for (_, backend), units in zip(groups, before, strict=True):
            backend.clear_units()
            for unit in units:
                backend.load_unit(unit)
    if error is not None:
        raise error
    if errors:
        raise ValueError("loading failed on " + "; ".join(f"rank {rank}: {text}" for rank, text in errors.items()))
    _tell(groups, report)
    return report


class Dropped(Exception):
    """Why a unit's residual cannot be loaded; the same on all ranks."""


def _load_into(
    source: Source, groups: Sequence[GroupAndBackend], live: Sequence[LiveUnit], *, is_of_model: bool
) -> LoadReport:
    report = LoadReport()
    loaded = set()
    for index, (group, backend) in enumerate(groups):
        saved = _same_group(source, groups, index)
        if saved is not None:
            loaded.add(source.ranks[saved[0]][saved[1]].ranks)
            report += _restore(source, saved, group, backend, live, is_of_model=is_of_model)
    return report + _those_of_other_groups(source, groups, loaded)


def _those_of_other_groups(
    source: Source, groups: Sequence[GroupAndBackend], loaded: set[tuple[int, ...]]
) -> LoadReport:
    """Report the units of saved groups that no group matches in ranks and nodes, if some group found no saved one."""
    if len(loaded) == len({tuple(backend.global_ranks) for _, backend in groups}):
        return LoadReport()
    dropped: dict[str, str] = {}
    for saved_groups in source.ranks.values():
        for group in saved_groups:
            if group.ranks not in loaded:
                reason = f"saved on other ranks or nodes: {len(group.ranks)} ranks on {len(group.nodes)} nodes"
                dropped |= {unit.name: reason for unit in group.units if unit.has_residual}
    return LoadReport(dropped=tuple(dropped.items()))


def _same_group(source: Source, groups: Sequence[GroupAndBackend], index: int) -> tuple[int, int] | None:
    """Return rank and index of the saved group that has the same ranks on the same nodes, None if there is none."""
    backend = groups[index][1]
    ranks = list(backend.global_ranks)
    nodes = ranks_by_node(backend.node_of_rank)
    # Several groups may have the same ranks; their order tells them apart.
    occurrence = [list(other.global_ranks) for _, other in groups[:index]].count(ranks)
    for rank, saved_groups in source.ranks.items():
        same = [i for i, saved in enumerate(saved_groups) if list(saved.ranks) == ranks]
        if len(same) > occurrence:
            if saved_groups[same[occurrence]].nodes != nodes:
                return None
            own = dist.get_rank()
            if own not in source.ranks:
                raise ValueError(
                    f"rank {own} is missing in the state, which holds the entries of rank {rank} and others"
                )
            return own, same[occurrence]
    return None


def _restore(
    source: Source,
    saved: tuple[int, int],
    group: dist.ProcessGroup,
    backend: Any,
    live: Sequence[LiveUnit],
    *,
    is_of_model: bool,
) -> LoadReport:
    """Load this rank's saved state of a group, bit for bit."""
    rank, group_index = saved
    saved_group = source.ranks[rank][group_index]
    check_options(saved_group, backend)
    source.check(rank, group_index)
    restored, dropped = [], []
    for index, unit in enumerate(saved_group.units):
        try:
            place = _place(unit, group, live, is_of_model=is_of_model)
        except Dropped as reason:
            if unit.has_residual:
                dropped.append((unit.name, str(reason)))
        else:
            state = {f.name: getattr(unit, f.name) for f in dataclasses.fields(UnitState)}
            backend.load_unit({**state, **source.residuals(rank, group_index, index), **place})
            restored.append(unit.name)
    return LoadReport(restored=tuple(restored), dropped=tuple(dropped))


def _place(
    saved: SavedUnit, group: dist.ProcessGroup, live: Sequence[LiveUnit], *, is_of_model: bool
) -> dict[str, Any]:
    """Return name, owner and layout of the live unit for a saved one. Raises Dropped if there is none."""
    here = [unit for unit in live if group in unit.groups]
    is_fsdp1 = saved.name.startswith("fsdp1:")
    is_bucket = saved.is_owned and base_name(saved.name).rpartition("/")[2].startswith("bucket ")
    if is_fsdp1:
        # FSDP1 names its units in their first reductions.
        unnamed = [unit for unit in here if unit.unit is not None and not unit.unit.in_rows and not unit.name]
        if here and not unnamed:
            raise Dropped("it was saved before isthmus.prepare, which gives FSDP1's units other names")
        return {"owner": 0}
    if not saved.is_owned or not here:
        return {"owner": 0}
    if is_bucket:
        return _place_bucket(saved, here)
    unit = named(saved.name, here, group)
    if unit is None:
        if not is_of_model and not any(found.name == base_name(saved.name) for found in here):
            return {"owner": 0}
        raise Dropped("there is no such unit; give load_checkpoint the model, prepared as it was")
    if saved.parameters is not None and unit.layout is not None and saved.parameters != unit.layout.to_json():
        raise Dropped("the unit has parameters of other names or shapes than were saved")
    place: dict[str, Any] = {"name": unit.full_name, "owner": unit.owner}
    if unit.unit is not None and not unit.unit.in_rows and unit.prepared is not None:
        place["layout"] = unit.prepared.remember(unit.unit.layout())
    return place


def _place_bucket(saved: SavedUnit, live: Iterable[LiveUnit]) -> dict[str, Any]:
    for unit in live:
        if unit.prepared is None or saved.parameters is None:
            continue
        bucket = unit.prepared.bucket_named(saved.name)
        if bucket is not None:
            layout = Layout.from_json(saved.parameters)
            if not {p for p in layout.parameters if p.name} <= set(unit.prepared.bucket_parameters):
                raise Dropped("the model has parameters of other names or shapes than were saved")
            full_name = unit.prepared.full_name(bucket.name)
            return {"name": full_name, "owner": unit.owner, "layout": unit.prepared.expect(bucket, layout)}
    raise Dropped("there is no such bucket; give load_checkpoint the model, prepared as it was")


def _exchange_errors(groups: Sequence[GroupAndBackend], error: Exception | None) -> dict[int, str]:
    """Return the errors of all ranks that this rank reaches through shared groups, directly or over other ranks."""
    errors = {} if error is None else {dist.get_rank(): str(error)}
    for group, _ in groups:
        known: list[Any] = [None] * group.size()
        dist.all_gather_object(known, errors, group=group)
        errors = {rank: text for texts in known for rank, text in texts.items()}
    return errors


def _tell(groups: Sequence[GroupAndBackend], report: LoadReport) -> None:
    """Count the dropped residuals, and warn once."""
    if not report.dropped:
        return
    groups[0][1].count_dropped(len(report.dropped))
    if any(group.rank() == 0 for group, _ in groups):
        reasons: dict[str, list[str]] = {}
        for name, reason in report.dropped:
            reasons.setdefault(reason, []).append(name)
        texts = [f"of {', '.join(map(repr, names))}: {reason}" for reason, names in reasons.items()]
        logger.warning("residuals were dropped, and a part of earlier gradients never arrives: %s", "; ".join(texts))


# --- Changing what is there ---


def scale_residuals(factor: float, model_or_group: Target = None) -> None:
    """Multiply all residuals by `factor`, by which a changed loss scale multiplies later gradients."""
    for _, backend in _groups(model_or_group):
        backend.scale_residuals(factor, _owners(model_or_group))


def clear_residuals(model_or_group: Target = None) -> None:
    """Forget all residuals, as if training had just begun."""
    for _, backend in _groups(model_or_group):
        backend.clear_units(_owners(model_or_group))


# Models and groups for which the program calls begin_step.
_begun: weakref.WeakSet[Any] = weakref.WeakSet()


def begin_step(model_or_group: Target = None) -> None:
    """Begin a step that `skip_step` can undo. It keeps a copy of the residuals, in as much memory again.

    All ranks call it in every step, before the first backward pass.
    """
    groups = _groups(model_or_group)
    for _, backend in groups:
        backend.begin_step(owners=_owners(model_or_group))
    _begun.update([group for group, _ in groups] if model_or_group is None else [model_or_group])


def skip_step(model_or_group: Target = None) -> None:
    """Undo a step whose gradients are thrown away: residuals are what they were at `begin_step`.

    All ranks call it, instead of `optimizer.step()`. A step that did not begin with `begin_step` cannot be undone: the
    residuals are dropped, which a warning says once, and `isthmus.stats()["dropped_residuals"]` counts.
    """
    groups = _groups(model_or_group)
    has_begun = model_or_group in _begun or all(group in _begun for group, _ in groups)
    lost = [backend.skip_step(_owners(model_or_group)) for _, backend in groups]
    if not has_begun and any(lost):
        for (_, backend), num_units in zip(groups, lost, strict=True):
            backend.count_dropped(num_units)
        if any(group.rank() == 0 for group, _ in groups):
            warn_once("skip_step dropped residuals: call isthmus.begin_step(model) before each step's backward pass")
