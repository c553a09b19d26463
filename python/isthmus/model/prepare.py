"""``isthmus.prepare``: tells the backend which unit of a model each reduction belongs to."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from isthmus.base import native
from isthmus.base.backends import backends_of, group_on_isthmus
from isthmus.base.job import is_first_rank, this_job, warn_once
from isthmus.model.buckets import bucket_parameters, end_bucket_hook, register_bucket_hook
from isthmus.model.calls import unit_of
from isthmus.model.collectives import give_back, replace_collectives, why_not_replaceable
from isthmus.model.copies import why_fsdp1_is_exact
from isthmus.model.gradient_scaling import follow
from isthmus.model.layout import Parameter, clean_name
from isthmus.model.models import (
    INPUT_BUFFERS,
    ddp_modules,
    fsdp1_units,
    fsdp2_groups,
    fsdp2_roots,
    fsdp2_units,
    groups_of,
    let_go,
    number_of,
    shard_group,
)
from isthmus.model.prefetch import Prefetch
from isthmus.model.units import Prepared, Unit, prepared_units
from isthmus.torch_private.groups import num_deferred_calls
from isthmus.torch_private.models import ParamGroup, device_of, gather_group, set_input_buffers

Model = TypeVar("Model", bound=nn.Module)

_prepared: weakref.WeakKeyDictionary[nn.Module, Prepared] = weakref.WeakKeyDictionary()

# What prepared itself of each model of FSDP2 that has had a pass, as nobody had prepared it. Often that is nothing.
_prepared_themselves: weakref.WeakKeyDictionary[nn.Module, Prepared] = weakref.WeakKeyDictionary()


def prepared_of(model: nn.Module) -> Prepared | None:
    """Return the record that `prepare` made of `model` itself."""
    return _prepared.get(model)


def prepared_by_programs() -> list[Prepared]:
    """Return the records that `prepare` made of all models that are alive."""
    return list(_prepared.values())


def prepared_models() -> list[nn.Module]:
    """Return all models that are alive and were prepared or prepared themselves."""
    return [*_prepared, *_prepared_themselves]


def prepare(model: Model, *, name: str = "", units: str = "*", scaler: Any = None, prefetch: bool = True) -> Model:
    """Give the units of `model` names of their own, and tell apart reductions of different parameters. Returns `model`.

    It takes models of FSDP2 (`fully_shard`), FSDP1 and DDP, and models whose parameters are DTensors (SimpleFSDP), over
    groups of Isthmus. All ranks call it alike, before or after the first step. A second call with equal arguments does
    nothing. A model of FSDP2 that nobody prepared prepares itself in its first forward pass, as by this call without
    arguments; a later call takes that call's place.

    name: a prefix of the names of the units, "name/blocks.0". Models whose units have equal names in one group are
    numbered in the order in which they are prepared, "blocks.0 (2)"; separate names tell them apart in checkpoints.
    units: which units are compressed: globs, "!" excludes, as in the option `units`; with or without that prefix.
    FSDP2 of torch 2.13 or newer then packs a unit's gradients while it reduces the previous unit's:
    `model.set_reduce_scatter_max_input_buffers(2)`, unless the model was given another number.

    prefetch: on GPUs, let FSDP2 gather each unit while the one before it computes, in forward passes as it does in
    backward passes. This takes the memory of one more gathered unit in forward passes, the first of which shows the
    order. Where that changes, or the model was told what to prefetch (`set_modules_to_forward_prefetch`), FSDP2 does as
    without.

    scaler: the GradScaler (or ShardedGradScaler) of the training loop. Its `update` then lets residuals follow the loss
    scale, and undoes a step that is skipped.

    Raises ValueError if there is nothing to prepare in `model`, if a unit belongs to another prepared model, or if it
    was prepared with other arguments before.
    """
    earlier = _prepared.get(model)
    if earlier is None:
        forget_what_prepared_itself(model)
        _prepared[model] = _prepare_units(model, Prepared(name, units, prefetch))
        _warn_of_noisy_rows(model, _prepared[model])
    elif (earlier.name, earlier.patterns, earlier.prefetches) != (name, units, prefetch):
        raise ValueError(
            f"this model was prepared with name={earlier.name!r}, units={earlier.patterns!r} and "
            f"prefetch={earlier.prefetches} before: name={name!r}, units={units!r} and prefetch={prefetch} cannot take "
            "their place"
        )
    if scaler is not None:
        follow(scaler, model)
    return model


def _prepare_units(model: nn.Module, prepared: Prepared) -> Prepared:
    fsdp2 = {group: unit for group, unit in fsdp2_units(model) if _is_on_isthmus(unit.process_groups)}
    fsdp1 = [found for found in fsdp1_units(model) if _is_on_isthmus(found[-1].process_groups)]
    ddp = [module for module in ddp_modules(model) if _is_on_isthmus([module.process_group])]
    prepared.units = {number_of(group): unit for group, unit in fsdp2.items()}
    prepared.units |= {number_of(handle): unit for _, handle, unit in fsdp1}
    if not prepared.units and not ddp:
        _prepare_dtensors(model, prepared)
        return prepared
    if len(ddp) > 1:
        raise ValueError(
            f"there are {len(ddp)} DDP modules in this model: prepare each of them, with a name of its own"
        )
    for module in ddp:
        prepared.bucket_parameters = tuple(bucket_parameters(module).values())
    for group in fsdp2:
        if found := prepared_units.get(group):
            raise ValueError(f"unit {found.name!r} of FSDP2 belongs to another prepared model")
    prepared.take_number(groups_of(model), number_of(ddp[0]) if ddp else None)
    _prepare_fsdp2(model, prepared, fsdp2, _is_on_isthmus)
    for fsdp_module, handle, unit in fsdp1:
        let_go(handle)
        _register(handle, unit, prepared)
        unit.exact = unit.exact or why_fsdp1_is_exact(handle, fsdp_module)
    for module in ddp:
        register_bucket_hook(module, prepared)
    return prepared


def _register(owner: Any, unit: Unit, prepared: Prepared) -> None:
    unit.prepared, unit.exact = prepared, prepared.exact_reason(unit.name)
    prepared_units[owner] = unit


def prepare_itself(root: nn.Module, *, begins_pass: bool = False) -> None:
    """Prepare what nobody prepared of a model of FSDP2 over groups of Isthmus. All ranks call it alike.

    begins_pass: `root` is at the beginning of a forward pass.
    """
    if root in _prepared_themselves:
        return
    units = {
        group: unit
        for group, unit in fsdp2_units(root)
        if group not in prepared_units and _is_of_isthmus(unit.process_groups)
    }
    prepared = _prepared_themselves[root] = Prepared("", "*", prefetches=True)
    prepared.units = {number_of(group): unit for group, unit in units.items()}
    prepared.take_number(dict.fromkeys(group for unit in units.values() for group in unit.process_groups))
    _prepare_fsdp2(root, prepared, units, _is_of_isthmus)
    if begins_pass and prepared.prefetch is not None:
        prepared.prefetch.begin()
    _warn_of_noisy_rows(root, prepared)


def _prepare_fsdp2(
    model: nn.Module,
    prepared: Prepared,
    units: dict[ParamGroup, Unit],
    crosses: Callable[[Iterable[dist.ProcessGroup]], bool],
) -> None:
    """Register FSDP2's units, and hand those whose gathers or reduce-scatters cross collectives of their own."""
    set_input_buffers(units, INPUT_BUFFERS)
    if prepared.prefetches and any(device_of(group).type == "cuda" for group in units):
        prepared.prefetch = Prefetch(model)
    for group, unit in units.items():
        _register(group, unit, prepared)
        let_go(group, but=unit.full_name)
        if crosses(found for found in (gather_group(group), shard_group(group)) if found is not None):
            unit.kept = why_not_replaceable(group)
            if not unit.kept:
                unit.collectives = replace_collectives(group, prepared.prefetch)
                this_job().hands_out_collectives = True


def forget_what_prepared_itself(model: nn.Module) -> None:
    """Undo `prepare_itself` for all models of FSDP2 that have modules in `model`."""
    for root in fsdp2_roots(model):
        _undo(root, _prepared_themselves.pop(root, None))


def forget(model: nn.Module) -> None:
    """Undo `prepare`, if it was called for this model."""
    _undo(model, _prepared.pop(model, None))


def _undo(model: nn.Module, prepared: Prepared | None) -> None:
    if prepared is None:
        return
    if prepared.prefetch is not None:
        prepared.prefetch.end()
    for module in ddp_modules(model):
        end_bucket_hook(module, prepared)
    for group in fsdp2_groups(model):
        found = prepared_units.get(group)
        if found is not None and found.prepared is prepared:
            if found.collectives is not None:
                give_back(group, found.collectives)
            del prepared_units[group]


def _is_on_isthmus(groups: Iterable[dist.ProcessGroup]) -> bool:
    return any(group_on_isthmus(group) is not None for group in groups)


def _is_of_isthmus(groups: Iterable[dist.ProcessGroup]) -> bool:
    """Return whether Isthmus is the backend of one of the groups itself, and not of one beside it."""
    return any(group_on_isthmus(group) is group for group in groups)


# --- DTensors ---


def _prepare_dtensors(model: nn.Module, prepared: Prepared) -> None:
    """Name the parameters; autograd then tells whether a reduction belongs to one of them, and to which.

    Activations that cross the same groups have no parameter behind them, and stay exact; so do reductions of compiled
    graphs, which autograd does not see.
    """
    parameters = [(name, p) for name, p in model.named_parameters() if isinstance(p, DTensor)]
    if not parameters or not _is_on_isthmus(groups_of(model)):
        raise ValueError(f"there is nothing to prepare: {_what_was_found(model)}, and no process group of Isthmus")
    # Only the model knows over which dimensions of its mesh a parameter is reduced.
    for name, parameter in parameters:
        unit_name = clean_name(name)
        mesh: Any = parameter.device_mesh
        groups = tuple(mesh.get_group(dim) for dim in range(mesh.ndim))
        parts = (Parameter(unit_name, tuple(parameter.shape)),)
        prepared.units[number_of(parameter)] = Unit(unit_name, parts, other_groups=groups)
    prepared.take_number(groups_of(model))
    for _, parameter in parameters:
        unit = prepared.units[number_of(parameter)]
        _register(parameter, unit, prepared)
        units = [unit_of(parameter, backend) for backend in backends_of(unit.process_groups)]
        native.load().name_parameter(parameter, units)


def _what_was_found(model: nn.Module) -> str:
    found: dict[str, list[Any]] = {
        "FSDP2 units": list(fsdp2_units(model)),
        "FSDP1 units": list(fsdp1_units(model)),
        "DDP modules": ddp_modules(model),
        "DTensor parameters": [p for p in model.parameters() if isinstance(p, DTensor)],
    }
    kinds = [f"{len(members)} {kind}" for kind, members in found.items() if members]
    groups = sorted({str(dist.get_backend(group)) for group in groups_of(model)})
    text = f"found {' and '.join(kinds) or 'a model without FSDP, DDP or DTensors'}"
    return f"{text} on {', '.join(groups)}" if groups else text


# --- Rows of embeddings that share groups of codec `quant` with other parameters or rows: see docs/choosing.md ---

#: Half a group: zeros that fill one come through as zeros.
_HALF_GROUP = 64


def _warn_of_noisy_rows(model: nn.Module, prepared: Prepared) -> None:
    """Say on rank 0 what to do about the first rows whose zero gradients get noise from their neighbours."""
    options = [backend.options for backend in backends_of(groups_of(model)) if backend.options.codec == "quant"]
    embeddings = {
        clean_name(f"{name}.weight".lstrip("."))
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding)
    }
    core = native.load()
    for unit in prepared.units.values() if is_first_rank() else ():
        full_name = prepared.full_name(unit.name)
        is_coded = any(core.unit_is_compressed(each.units, full_name) for each in options)
        for name in _noisy_in(unit, embeddings) if is_coded and not prepared.exact_reason(unit.name) else ():
            excluded = f"!{core.glob_of(full_name)}"
            warn_once(
                f"rows of {name} share groups of {2 * _HALF_GROUP} elements with others: where a token does not occur, "
                f"a gradient of zero gets some noise, of which Adam makes whole steps. units={excluded!r} leaves "
                f"the unit exact; a width that {_HALF_GROUP} divides, in a unit of its own, has no noise"
            )
            return


def _noisy_in(unit: Unit, embeddings: set[str]) -> Iterator[str]:
    layout, begin = unit.layout(), 0
    for parameter, elements in zip(layout.parameters, layout.section_elements, strict=True):
        width = math.prod(parameter.shape[1:]) // (1 if parameter.dim == 0 else layout.num_rows)
        if parameter.name in embeddings and (begin % _HALF_GROUP or width % _HALF_GROUP):
            yield f"{parameter.name} ({width} elements)"
        begin += elements


# --- Reductions that a user names ---


@contextmanager
def unit(name: str) -> Iterator[None]:
    """Declare that this thread's reductions in the block are gradients of the unit `name`.

    Use it for reductions that neither FSDP nor `prepare` knows; reductions that they know keep their own units in the
    block. The name must stand for the same parameters, in the same order, whenever a reduction of equal size and type
    is made under it, because a codec adds its residual to the next one. Several such reductions in one block are
    "name", "name (2)", in their order, so a block must not span steps. All ranks use the same name. Units nest; the
    innermost counts. A coalescing manager makes its calls when it ends, so it stands inside of the block.
    """
    if not name:
        raise ValueError("a unit needs a name")
    before = num_deferred_calls()
    core = native.load()
    core.push_name(name)
    try:
        yield
    finally:
        core.pop_name()
    if (number := num_deferred_calls() - before) > 0 and is_first_rank():
        warn_once(
            f"isthmus.unit({name!r}) is inside of a coalescing manager, where it names nothing: torch makes its "
            f"{number} calls when the manager ends. Put the manager inside of the block"
        )
