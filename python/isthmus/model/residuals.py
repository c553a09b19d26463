"""Saves and loads residuals: ``isthmus.state_dict``, ``load_state_dict`` and ``load_checkpoint``."""

from __future__ import annotations

import dataclasses
import logging
import re
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch import nn

from isthmus.base.backends import backend_of, backends_of
from isthmus.base.job import warn_once
from isthmus.group.nodes.node_map import ranks_by_node
from isthmus.model.checkpoint import source_of_checkpoint
from isthmus.model.layout import Layout
from isthmus.model.models import ddp_modules, fsdp1_units, fsdp2_roots, groups_of, held_units, owners_in
from isthmus.model.prepare import prepare_itself, prepared_models, prepared_of
from isthmus.model.saved_state import (
    RESIDUALS,
    LoadReport,
    SavedGroup,
    SavedUnit,
    Source,
    source_of_state,
    tensor_key,
    to_text,
)
from isthmus.model.units import Unit, prepared_units
from isthmus.torch_private.groups import all_groups

if TYPE_CHECKING:
    from isthmus import _C

# The options of a group that define its residuals.
_OPTIONS = ("codec", "tiers", "ratio", "sparsity")

Target = nn.Module | dist.ProcessGroup | None
Groups = Mapping[Any, dist.ProcessGroup]  # by backend

logger = logging.getLogger("isthmus")


# --- Process groups and their units ---


def _groups(target: Target) -> Groups:
    """Return the target's groups of Isthmus by their backends, in the same order on all ranks."""
    if isinstance(target, nn.Module):
        found, what = backends_of(groups_of(target)), "the model is reduced over no process group of isthmus"
    elif target is None:
        found = {backend: group for backend, group in backends_of(all_groups()).items() if not backend.beyond_job}
        what = "this process has no process group of isthmus"
    else:
        return {backend_of(target): target}
    if not found:
        raise ValueError(what)
    return found


def _units(target: Target) -> list[_C.Unit] | None:
    """Return the target's units, None for all of its groups."""
    return held_units(target) if isinstance(target, nn.Module) else None


# --- Units of live models, prepared or not ---


def _live_units(target: Target) -> list[Unit]:
    """Return the units of a model; by default, of all that were prepared or prepared themselves.

    That of DDP has no name: its reductions name its buckets.
    """
    models = [target] if isinstance(target, nn.Module) else prepared_models()
    return list({id(owner): unit for model in models for owner, unit in _units_of(model)}.values())


def _units_of(model: nn.Module) -> Iterator[tuple[Any, Unit]]:
    yield from ((owner, prepared_units[owner]) for owner in owners_in(model) if owner in prepared_units)
    yield from ((handle, unit) for _, handle, unit in fsdp1_units(model) if handle not in prepared_units)
    for ddp in ddp_modules(model):
        yield ddp, Unit("", (), other_groups=(ddp.process_group,), prepared=prepared_of(model))
    for module in model.modules():  # what was prepared by itself keeps the names of that call
        if module is not model and prepared_of(module) is not None:
            yield from _units_of(module)


def _reduces(unit: Unit, name: str) -> bool:
    """Return whether a backend knows the unit, or one of DDP's buckets, under this name."""
    if not unit.name and unit.prepared is not None:
        return _split_name(name)[0].startswith(unit.prepared.base_name("bucket "))
    return name == unit.full_name


def _split_name(name: str) -> tuple[str, int]:
    """Return a unit's name without the number that tells apart models of equal names, "blocks.0 (2)"; and that."""
    found = re.fullmatch(r"(.*?)(?: \((\d+)\))?", name, re.DOTALL)
    assert found is not None  # any text matches
    return found[1], int(found[2] or 1)


# --- Saving ---


def state_dict(model_or_group: Target = None) -> dict[str, Any]:
    """Return this rank's residuals and the units that they belong to.

    It covers the units of a model or of one process group of Isthmus, by default of all. Save it with the model:
    `torch.distributed.checkpoint.save({"isthmus": isthmus.state_dict(model), ...})` or, on every rank, `torch.save`.
    It leaves out models that are gone. Tensors are copies. Call it between steps, on all ranks.
    """
    rank = dist.get_rank()
    state: dict[str, Any] = {}
    groups = []
    for group_index, backend in enumerate(_groups(model_or_group)):
        units = []
        for unit_index, unit_state in enumerate(_states(backend, model_or_group)):
            units.append(_describe(unit_state))
            for kind in RESIDUALS:
                if unit_state[kind].numel():
                    state[tensor_key(rank, group_index, unit_index, kind)] = unit_state[kind]
        options = {name: str(getattr(backend.options, name)) for name in _OPTIONS}
        groups.append(SavedGroup(tuple(backend.global_ranks), tuple(backend.node_of_rank), options, tuple(units)))
    state[f"rank{rank}"] = to_text(groups)
    return state


def _states(backend: _C.Backend, target: Target) -> list[dict[str, Any]]:
    """Return the state of a target's units, and of those that nobody holds.

    Models of equal names are renumbered in their order, since models that are gone do not count.
    """
    states = backend.unit_states()
    if isinstance(target, nn.Module):
        names, live = {unit.name for unit in held_units(target)}, _live_units(target)

        def is_of_target(name: str) -> bool:
            return name in names or any(_reduces(unit, name) for unit in live)

        states = [state for state in states if not state["is_held"] or is_of_target(state["name"])]
    names_held = [_split_name(state["name"]) for state in states if state["is_held"]]
    for state in states:
        base, number = _split_name(state["name"])
        if state["is_held"]:
            earlier = {other for name, other in names_held if name == base and other < number}
            state["name"] = f"{base} ({len(earlier) + 1})" if earlier else base
    return states


def _describe(state: Mapping[str, Any]) -> SavedUnit:
    return SavedUnit(
        **{field.name: state[field.name] for field in dataclasses.fields(SavedUnit) if field.name in state},
        **{f"{kind}_elements": state[kind].numel() for kind in RESIDUALS},
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

    checkpoint_id_or_reader: a folder, or a `StorageReader`. Torch's own reader reads it, as `dcp.load` reads the model
    beside it: whoever can write there must be trusted. Raises ValueError, which names the entry, where it is damaged.
    """
    return _load(lambda: source_of_checkpoint(checkpoint_id_or_reader, key), model_or_group)


def _load(open_source: Callable[[], Source], target: Target) -> LoadReport:
    groups = _groups(target)
    for root in fsdp2_roots(target) if isinstance(target, nn.Module) else ():
        prepare_itself(root)  # what was saved then finds its unit
    units = _units(target)
    before = [backend.unit_states() for backend in groups]
    for backend in groups:
        backend.clear_units(units)
    error: Exception | None = None
    try:
        report = _load_into(open_source(), groups, _live_units(target), is_of_model=isinstance(target, nn.Module))
    except Exception as caught:
        error = caught
    errors = _exchange_errors(groups, error)
    if errors:
        for backend, states in zip(groups, before, strict=True):
            backend.clear_units()
            for state in states:
                backend.load_unit(state)
    if error is not None:
        raise error
    if errors:
        raise ValueError("loading failed on " + "; ".join(f"rank {rank}: {text}" for rank, text in errors.items()))
    _tell(groups, report)
    return report


class Dropped(Exception):
    """Why a unit's residual cannot be loaded; the same on all ranks."""


def _load_into(source: Source, groups: Groups, live: Sequence[Unit], *, is_of_model: bool) -> LoadReport:
    """Load this rank's saved state of each group, bit for bit."""
    rank = dist.get_rank()
    restored: list[str] = []
    dropped: list[tuple[str, str]] = []
    loaded = set()
    seen: Counter[tuple[int, ...]] = Counter()  # several groups may have the same ranks; their order tells them apart
    for backend, group in groups.items():
        ranks = tuple(backend.global_ranks)
        saved_index = _same_group(source, ranks, ranks_by_node(backend.node_of_rank), seen[ranks])
        seen[ranks] += 1
        if saved_index is None:
            continue
        saved = source.ranks[rank][saved_index]
        loaded.add(ranks)
        tiers = backend.options.tiers
        if saved.units and saved.options.get("tiers", tiers) != tiers:  # another codec may take them
            raise ValueError(f"residuals were saved with tiers={saved.options['tiers']}, and this group has {tiers}")
        source.check(rank, saved_index)
        here = [unit for unit in live if group in unit.process_groups]
        for unit_index, unit in enumerate(saved.units):
            try:
                name = _name_here(unit, here, is_of_model=is_of_model)
            except Dropped as reason:
                if unit.has_residual:
                    dropped.append((unit.name, str(reason)))
            else:
                residuals = source.residuals(rank, saved_index, unit_index)
                backend.load_unit({**vars(unit), **residuals, "name": name})
                restored.append(unit.name)
    if len(loaded) < len(seen):
        dropped += _those_of_other_groups(source, loaded)
    return LoadReport(tuple(restored), tuple(dropped))


def _those_of_other_groups(source: Source, loaded: set[tuple[int, ...]]) -> Iterable[tuple[str, str]]:
    """Return the units of saved groups that no group matches in ranks and nodes, with the reason."""
    dropped: dict[str, str] = {}
    for saved_groups in source.ranks.values():
        for group in saved_groups:
            if group.ranks not in loaded:
                reason = f"saved on other ranks or nodes: {len(group.ranks)} ranks on {len(group.nodes)} nodes"
                dropped |= {unit.name: reason for unit in group.units if unit.has_residual}
    return dropped.items()


def _same_group(source: Source, ranks: tuple[int, ...], nodes: list[list[int]], occurrence: int) -> int | None:
    """Return the index of this rank's saved group that has these ranks on these nodes, None if there is none."""
    own = dist.get_rank()
    for rank in [own] if own in source.ranks else source.ranks:
        same = [i for i, saved in enumerate(source.ranks[rank]) if saved.ranks == ranks]
        if len(same) <= occurrence:
            continue
        if source.ranks[rank][same[occurrence]].nodes != nodes:
            return None
        if rank != own:
            raise ValueError(f"rank {own} is missing in the state, which holds the entries of rank {rank} and others")
        return same[occurrence]
    return None


def _name_here(saved: SavedUnit, here: Sequence[Unit], *, is_of_model: bool) -> str:
    """Return the name of the live unit of a saved one. here: the units of its group. Raises Dropped."""
    base, number = _split_name(saved.name)
    if saved.name.startswith("fsdp1:"):
        # FSDP1 names its units in their first reductions.
        unnamed = [unit for unit in here if unit.name and not unit.in_rows and not unit.full_name]
        if here and not unnamed:
            raise Dropped("it was saved before isthmus.prepare, which gives FSDP1's units other names")
        return saved.name
    if not saved.is_held or not here:
        return saved.name
    if (bucket := base.rpartition("/")[2]).startswith("bucket "):
        return _name_of_bucket(saved, base, bucket, here)
    # Their order tells apart models of equal names.
    alike = [unit for unit in here if unit.base_name == base]
    alike.sort(key=lambda unit: unit.prepared.number if unit.prepared is not None else 0)
    if number > len(alike):
        if not is_of_model and not alike:
            return saved.name
        raise Dropped("there is no such unit; give load_checkpoint the model, prepared as it was")
    unit = alike[number - 1]
    if saved.parameters and saved.parameters != unit.layout().to_json():
        raise Dropped("the unit has parameters of other names or shapes than were saved")
    return unit.full_name


def _name_of_bucket(saved: SavedUnit, base: str, bucket: str, here: Iterable[Unit]) -> str:
    for unit in here:
        prepared = unit.prepared
        if prepared is None or not prepared.bucket_parameters or prepared.base_name(bucket) != base:
            continue
        if not saved.parameters:
            continue
        layout = Layout.from_json(saved.parameters)
        if not {p for p in layout.parameters if p.name} <= set(prepared.bucket_parameters):
            raise Dropped("the model has parameters of other names or shapes than were saved")
        prepared.expect(bucket, layout)
        return prepared.full_name(bucket)
    raise Dropped("there is no such bucket; give load_checkpoint the model, prepared as it was")


def _exchange_errors(groups: Groups, error: Exception | None) -> dict[int, str]:
    """Return the errors of all ranks that this rank reaches through shared groups, directly or over other ranks."""
    errors = {} if error is None else {dist.get_rank(): str(error)}
    for group in groups.values():
        known: list[Any] = [None] * group.size()
        dist.all_gather_object(known, errors, group=group)
        errors = {rank: text for texts in known for rank, text in texts.items()}
    return errors


def _tell(groups: Groups, report: LoadReport) -> None:
    """Count the dropped residuals, and warn once."""
    if not report.dropped:
        return
    next(iter(groups)).count_dropped(len(report.dropped))
    if any(group.rank() == 0 for group in groups.values()):
        reasons: dict[str, list[str]] = {}
        for name, reason in report.dropped:
            reasons.setdefault(reason, []).append(name)
        texts = [f"of {', '.join(map(repr, names))}: {reason}" for reason, names in reasons.items()]
        logger.warning("residuals were dropped, and a part of earlier gradients never arrives: %s", "; ".join(texts))


# --- Changing what is there ---


def scale_residuals(factor: float, model_or_group: Target = None) -> None:
    """Multiply all residuals by `factor`, by which a changed loss scale multiplies later gradients."""
    for backend in _groups(model_or_group):
        backend.scale_residuals(factor, _units(model_or_group))


def clear_residuals(model_or_group: Target = None) -> None:
    """Forget all residuals, as if training had just begun."""
    for backend in _groups(model_or_group):
        backend.clear_units(_units(model_or_group))


# Models and groups for which the program calls begin_step.
_begun: weakref.WeakSet[Any] = weakref.WeakSet()


def begin_step(model_or_group: Target = None) -> None:
    """Begin a step that `skip_step` can undo. It keeps a copy of the residuals, in as much memory again.

    All ranks call it in every step, before the first backward pass.
    """
    groups = _groups(model_or_group)
    for backend in groups:
        backend.begin_step(units=_units(model_or_group))
    _begun.update(groups.values() if model_or_group is None else [model_or_group])


def skip_step(model_or_group: Target = None) -> None:
    """Undo a step whose gradients are thrown away: residuals are what they were at `begin_step`.

    All ranks call it, instead of `optimizer.step()`. A step that did not begin with `begin_step` cannot be undone: the
    residuals are dropped, which a warning says once, and `isthmus.stats()["dropped_residuals"]` counts.
    """
    groups = _groups(model_or_group)
    has_begun = model_or_group in _begun or all(group in _begun for group in groups.values())
    lost = [backend.skip_step(_units(model_or_group)) for backend in groups]
    if not has_begun and any(lost):
        for backend, num_units in zip(groups, lost, strict=True):
            backend.count_dropped(num_units)
        if any(group.rank() == 0 for group in groups.values()):
            warn_once("skip_step dropped residuals: call isthmus.begin_step(model) before each step's backward pass")
