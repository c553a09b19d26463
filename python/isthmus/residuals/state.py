"""Saves and loads residuals: ``isthmus.state_dict``, ``load_state_dict`` and ``load_checkpoint``."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch.distributed as dist
from torch import nn

from isthmus.backends import backends_of
from isthmus.residuals.known import KnownModel, Target, known_models, layout_in_key
from isthmus.residuals.reshard import Dropped, GroupAndBackend, place, reshard_residuals
from isthmus.residuals.saved import (
    RESIDUALS,
    LoadReport,
    SavedGroup,
    SavedUnit,
    Source,
    check_options,
    option_texts,
    ranks_by_node,
    source_of_checkpoint,
    source_of_state,
    tensor_key,
    to_text,
)
from isthmus.units.layout import Layout
from isthmus.units.models import Unit, all_groups, groups_of

logger = logging.getLogger("isthmus")


# --- Process groups and their units ---


def _groups(target: Target) -> list[GroupAndBackend]:
    """Return the groups of Isthmus that are meant, with their backends; the same order on all ranks."""
    if isinstance(target, nn.Module):
        groups = groups_of(target)
        what = "the model is reduced over no process group of isthmus"
    elif target is None:
        groups = all_groups()
        what = "this process has no process group of isthmus"
    else:
        groups = [target]
        what = f"the backend of this group is {dist.get_backend(target)}, not isthmus"
    found = backends_of(groups)
    if not found:
        raise ValueError(what)
    return [(group, backend) for backend, group in found.items()]


def _layouts_of(
    group: dist.ProcessGroup, state: Mapping[str, Any], known: Iterable[KnownModel]
) -> list[tuple[Unit, Layout, int]]:
    """Return the layouts that a unit of the backend may have, with the first element of its tensor."""
    wanted = (group, state["collective"], state["num_elements"])
    return [
        (unit, layout, reduction.first_element)
        for model in known
        for unit, layout in model.layouts(state)
        for reduction in unit.reductions(layout)
        if (reduction.process_group, reduction.collective, reduction.num_elements) == wanted
    ]


# --- Saving ---


def state_dict(model_or_group: Target = None) -> dict[str, Any]:
    """Return this rank's residuals and the units that they belong to.

    Of the process groups that `model_or_group` uses (default: all of Isthmus). Save it beside model and optimizer, with
    `torch.distributed.checkpoint.save({"isthmus": isthmus.state_dict(model), ...})` or, on every rank, `torch.save`.
    With a model, or after `isthmus.prepare`, it says which parameters residuals belong to, so that they can be loaded
    on other numbers of ranks. Tensors are copies. Call it between steps, on all ranks.
    """
    known = known_models(model_or_group)
    prepared = [model for model in known if model.prepared is not None]
    rank = dist.get_rank()
    state: dict[str, Any] = {}
    groups = []
    for group_index, (group, backend) in enumerate(_groups(model_or_group)):
        units = []
        unit_states = backend.unit_states()
        # Unprepared models with equal names are numbered, and the number of a live one is not known here.
        numbered = {state["name"].removesuffix(" (2)") for state in unit_states if state["name"].endswith(" (2)")}
        for unit_index, unit_state in enumerate(unit_states):
            units.append(_describe(group, unit_state, prepared if unit_state["name"] in numbered else known))
            for kind in RESIDUALS:
                if unit_state[kind].numel():
                    state[tensor_key(rank, group_index, unit_index, kind)] = unit_state[kind]
        ranks = tuple(backend.global_ranks)
        groups.append(SavedGroup(ranks, tuple(backend.node_of_rank), option_texts(backend), tuple(units)))
    state[f"rank{rank}"] = to_text(groups)
    return state


def _describe(group: dist.ProcessGroup, state: Mapping[str, Any], known: Sequence[KnownModel]) -> SavedUnit:
    layouts = _layouts_of(group, state, known)
    saved = SavedUnit(
        **{name: state[name] for name in ("name", "num_elements", "dtype", "collective", "layout", "step", "scale")},
        residual_elements=state["residual"].numel(),
        result_residual_elements=state["result_residual"].numel(),
    )
    if len(layouts) != 1:  # not known, or not for certain
        return saved
    unit, layout, first_element = layouts[0]
    return dataclasses.replace(
        saved,
        parameters=layout.to_json(),
        first_element=first_element,
        divisor=unit.divisor_of(saved.dtype),
    )


# --- Loading ---


def load_state_dict(state: Mapping[str, Any], model_or_group: Target = None, *, reshard: bool = True) -> None:
    """Load what `state_dict` returned, on all ranks of the same process groups.

    Residuals that are there already are dropped. If the groups have other nodes or ranks than they had, `state` must
    hold the entries of all ranks that saved; residuals are then re-sharded, or dropped with reshard=False. If loading
    fails on one rank it fails on all, and changes nothing.
    """
    _load(lambda: source_of_state(state), model_or_group, reshard)


def load_checkpoint(
    checkpoint_id_or_reader: Any, model_or_group: Target = None, *, key: str = "isthmus", reshard: bool = True
) -> LoadReport:
    """Load what was saved with `torch.distributed.checkpoint.save({key: isthmus.state_dict(...)})`.

    From any number of ranks: if nodes or ranks differ, residuals are re-sharded: what they will add to the gradient of
    each parameter stays the same, to rounding. That needs the parameters, of models that are given or prepared both
    when saving and when loading. A residual that cannot be placed is dropped, with a warning that names it.
    reshard=False drops residuals instead of re-sharding them. All ranks call it; they read the files of all, one unit
    at a time. If it fails on one rank it fails on all, and changes nothing.

    No code in a folder is run, whoever made it. A `StorageReader` of your own reads the checkpoint's metadata itself:
    most of torch's, FileSystemReader too, unpickle it, which runs any code of its author.
    """
    return _load(lambda: source_of_checkpoint(checkpoint_id_or_reader, key), model_or_group, reshard)


def _load(open_source: Callable[[], Source], target: Target, reshard: bool) -> LoadReport:
    groups = _groups(target)
    before = [backend.unit_states() for _, backend in groups]
    for _, backend in groups:
        backend.clear_units()
    error: Exception | None = None
    try:
        report = _load_into(open_source(), groups, known_models(target), reshard)
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
    _warn(groups, report)
    return report


def _load_into(
    source: Source, groups: Sequence[GroupAndBackend], known: Sequence[KnownModel], reshard: bool
) -> LoadReport:
    report = LoadReport()
    changed = []
    for index, (group, backend) in enumerate(groups):
        saved = _same_group(source, groups, index)
        if saved is None:
            changed.append((group, backend))
        else:
            report += _restore(source, saved, group, backend, known)
    if changed:
        report += reshard_residuals(source, groups, changed, known, only_drop=not reshard)
    return report


def _same_group(source: Source, groups: Sequence[GroupAndBackend], index: int) -> tuple[int, int] | None:
    """Return rank and index of the saved group that has the same ranks on the same nodes, None if there is none."""
    backend = groups[index][1]
    ranks = list(backend.global_ranks)
    nodes = ranks_by_node(backend.node_of_rank)
    # Several groups may have the same ranks: they are told apart by their order.
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
    source: Source, saved: tuple[int, int], group: dist.ProcessGroup, backend: Any, known: Sequence[KnownModel]
) -> LoadReport:
    """Load this rank's saved state of a group, bit for bit."""
    rank, group_index = saved
    saved_group = source.ranks[rank][group_index]
    check_options(saved_group, backend)
    source.check(rank, group_index)
    restored, dropped = [], []
    for index, unit in enumerate(saved_group.units):
        state = {f.name: getattr(unit, f.name) for f in dataclasses.fields(SavedUnit)[:7]}
        try:
            state["layout"] = _layout_now(unit, group, known)
        except Dropped as reason:
            dropped.append((unit.name, str(reason)))
        else:
            backend.load_unit({**state, **source.residuals(rank, group_index, index)})
            restored.append(unit.name)
    return LoadReport(restored=tuple(restored), dropped=tuple(dropped))


def _layout_now(unit: SavedUnit, group: dist.ProcessGroup, known: Sequence[KnownModel]) -> int:
    """Return the layout in the unit's key, which depends on whether its model is prepared."""
    if unit.parameters is None or not any(model.is_reduced_over(group) for model in known):
        return unit.layout
    layout = Layout.from_json(unit.parameters)
    live, prepared, _ = place(unit.name, layout, [group], known)
    return layout_in_key(live, layout, prepared)


def _exchange_errors(groups: Sequence[GroupAndBackend], error: Exception | None) -> dict[int, str]:
    """Return the errors of all ranks that are in a group with this one, or with one that is, and so on."""
    errors = {} if error is None else {dist.get_rank(): str(error)}
    for group, _ in groups:
        known: list[Any] = [None] * group.size()
        dist.all_gather_object(known, errors, group=group)
        errors = {rank: text for texts in known for rank, text in texts.items()}
    return errors


def _warn(groups: Sequence[GroupAndBackend], report: LoadReport) -> None:
    if report.dropped and any(group.rank() == 0 for group, _ in groups):
        for name, reason in report.dropped:
            logger.warning("residuals of unit %r were dropped: %s", name, reason)


# --- Changing what is there ---


def scale_residuals(factor: float, model_or_group: Target = None) -> None:
    """Multiply all residuals by `factor`, where later gradients are larger by it: a changed loss scale."""
    for _, backend in _groups(model_or_group):
        backend.scale_residuals(factor)


def clear_residuals(model_or_group: Target = None) -> None:
    """Forget all residuals, as if training had just begun."""
    for _, backend in _groups(model_or_group):
        backend.clear_units()
