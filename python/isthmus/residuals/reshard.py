"""Loads residuals on other nodes or ranks than those that saved them.

A residual is defined by what it will add to the result of its reduction: scale x residual, summed over ranks, for
each element of each parameter. That sum is computed from all parts of a saved unit, and placed on a rank that can
send it: on the node that follows the owner's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from isthmus.residuals.known import KnownModel, find_unit, layout_in_key
from isthmus.residuals.saved import LoadReport, SavedGroup, SavedUnit, Source, check_options, ranks_by_node
from isthmus.units.layout import Layout, Parameter, Totals
from isthmus.units.models import Reduction, Unit
from isthmus.units.prepare import Prepared

GroupAndBackend = tuple[dist.ProcessGroup, Any]


@dataclass(frozen=True)
class _Part:
    """One unit as one rank saved it."""

    rank: int  # in the world that saved
    group_index: int
    unit_index: int
    group: SavedGroup
    unit: SavedUnit


@dataclass
class _Whole:
    """All parts of a unit: of every rank, and of every group that HSDP reduced a row of it over."""

    name: str
    dtype: str
    layout: Layout | None  # None: not known
    parts: list[_Part] = field(default_factory=list)

    @property
    def is_ambiguous(self) -> bool:
        """Whether several groups reduced the same elements: pipeline stages or replicas of equal names."""
        groups: dict[tuple[str, int], tuple[int, ...]] = {}
        return any(
            groups.setdefault((part.unit.collective, part.unit.first_element), part.group.ranks) != part.group.ranks
            for part in self.parts
        )


class Dropped(Exception):
    """Why a unit cannot be placed. All ranks find the same."""


def place(
    name: str, layout: Layout, groups: Collection[dist.ProcessGroup], known: Sequence[KnownModel]
) -> tuple[Unit, Prepared | None, dict[Parameter, Parameter]]:
    """Return the live unit that a saved one is, what `prepare` noted of its model, and its parameters by saved ones."""
    found = find_unit(name, groups, known)
    if found is None:
        raise Dropped("there is no such unit, or several; give load_checkpoint the model, prepared as it was")
    unit, prepared = found
    return unit, prepared, _matching(layout, unit)


def reshard_residuals(
    source: Source,
    groups: Sequence[GroupAndBackend],
    changed: Sequence[GroupAndBackend],
    known: Sequence[KnownModel],
    *,
    only_drop: bool,
) -> LoadReport:
    """Load saved residuals into the groups in `changed`; the others of `groups` have been loaded."""
    resharded, dropped = [], []
    unchanged = {tuple(backend.global_ranks) for entry in groups if entry not in changed for backend in entry[1:]}
    for whole in _wholes(source):
        if {part.group.ranks for part in whole.parts} <= unchanged:
            continue
        try:
            if only_drop:
                raise Dropped("reshard=False")
            if _reshard_unit(source, whole, groups, changed, known):
                resharded.append(whole.name)
        except Dropped as reason:
            dropped.append((whole.name, str(reason)))
    return LoadReport(resharded=tuple(resharded), dropped=tuple(dropped))


def _wholes(source: Source) -> list[_Whole]:
    wholes: dict[tuple[Any, ...], _Whole] = {}
    for rank, groups in source.ranks.items():
        for group_index, group in enumerate(groups):
            missing = sorted(set(group.ranks) - set(source.ranks))
            if missing and group.units:
                raise ValueError(
                    f"residuals were saved by ranks {list(group.ranks)}, and of these {missing} are missing: to "
                    "re-shard them, the state must hold the entries of all (isthmus.load_checkpoint reads them)"
                )
            for unit_index, unit in enumerate(group.units):
                key = (unit.name, unit.dtype, unit.parameters or (unit.num_elements, unit.layout))
                layout = Layout.from_json(unit.parameters) if unit.parameters else None
                whole = wholes.setdefault(key, _Whole(unit.name, unit.dtype, layout))
                whole.parts.append(_Part(rank, group_index, unit_index, group, unit))
    return list(wholes.values())


def _reshard_unit(
    source: Source,
    whole: _Whole,
    groups: Sequence[GroupAndBackend],
    changed: Sequence[GroupAndBackend],
    known: Sequence[KnownModel],
) -> bool:
    """Load one unit; return False if it belongs to a group that has been loaded."""
    if whole.layout is None:
        raise Dropped("its parameters are not known: prepare its model, or give it to state_dict, when saving")
    if whole.is_ambiguous:
        raise Dropped("units of several models have this name: isthmus.prepare(name=...) tells them apart")
    unit, prepared, parameters = place(whole.name, whole.layout, [group for group, _ in groups], known)
    layout = whole.layout if prepared and prepared.bucket_group else unit.layout(_in_order(unit, parameters))
    reduction, backend = _between_nodes(unit.reductions(layout), groups)
    if (reduction.process_group, backend) not in changed:
        return False
    for part in whole.parts:
        check_options(part.group, backend)
        source.check(part.rank, part.group_index)
    totals = _totals(source, whole, unit.divisor_of(whole.dtype))
    totals = {new: totals[old] for old, new in parameters.items()}
    backend.load_unit(
        {
            "name": whole.name,
            "num_elements": reduction.num_elements,
            "dtype": whole.dtype,
            "collective": reduction.collective,
            "layout": layout_in_key(unit, layout, prepared),
            "step": max(part.unit.step for part in whole.parts),
            "scale": 1.0,
            "residual": _residual(layout, totals, reduction, backend),
            "result_residual": torch.empty(0),
        }
    )
    return True


def _matching(saved: Layout, unit: Unit) -> dict[Parameter, Parameter]:
    """Return which parameters of `unit` the saved ones are."""
    live = {(p.name, p.shape, p.part): p for p in unit.parameters if p.name}
    found = {p: live.get((p.name, p.shape, p.part)) for p in saved.parameters if p.name}
    missing = sorted(p.name for p, new in found.items() if new is None)
    if missing:
        raise Dropped(f"the unit has no parameters {', '.join(missing)} of the shapes that were saved")
    return {old: new for old, new in found.items() if new is not None}


def _in_order(unit: Unit, parameters: Mapping[Parameter, Parameter]) -> Sequence[Parameter] | None:
    """Return the parameters as the unit reduces them; FSDP1 always reduces all of them."""
    if not unit.in_rows:
        return None
    wanted = set(parameters.values())
    in_order = [p for p in unit.trained if p in wanted]
    return in_order if len(in_order) == len(wanted) else [p for p in unit.parameters if p in wanted]


def _between_nodes(reductions: Sequence[Reduction], groups: Sequence[GroupAndBackend]) -> tuple[Reduction, Any]:
    """Return the last of the reductions that crosses between nodes, and its backend."""
    for reduction in reversed(reductions):
        for group, backend in groups:
            sizes = {len(ranks) for ranks in ranks_by_node(backend.node_of_rank)}
            if group is reduction.process_group and len(sizes) == 1 and sizes != {group.size()}:
                return reduction, backend
    raise Dropped("it is reduced within one node now, or between nodes of unequal size, where nothing is compressed")


# --- Arithmetic ---


def _totals(source: Source, whole: _Whole, divisor: float) -> Totals:
    """Return what the residuals of all parts will add to the parameters' gradients, times `divisor`."""
    assert whole.layout is not None
    totals = whole.layout.zeros()
    for part in whole.parts:
        tensors = source.residuals(part.rank, part.group_index, part.unit_index)
        factor = divisor / part.unit.divisor
        for kind, begin, length, offset in _pieces(part):
            scale = factor * (part.unit.scale if kind == "residual" else 1)
            values = tensors[kind][offset : offset + length].float() * scale
            whole.layout.add(values, part.unit.first_element + begin, totals)
    return totals


def _pieces(part: _Part) -> Iterator[tuple[str, int, int, int]]:
    """Yield the pieces of a part: kind, first element of the reduced tensor, length, place in the residual."""
    num_elements = part.unit.num_elements
    own = part.group.ranks.index(part.rank)
    chunk = -(-num_elements // len(part.group.ranks))
    if part.unit.residual_elements and part.group.options["tiers"] == "flat":
        yield "residual", 0, num_elements, 0
    elif part.unit.residual_elements:
        with_own = part.group.options.get("own_piece") == "coded"
        for index, owner in enumerate(_owners(part.group.nodes, own, with_own)):
            yield "residual", owner * chunk, _length(owner, chunk, num_elements), index * chunk
    if part.unit.result_residual_elements:
        yield "result_residual", own * chunk, _length(own, chunk, num_elements), 0


def _owners(nodes: Sequence[Sequence[int]], rank: int, with_own: bool) -> list[int]:
    """Return the ranks of a rank's rail that own what its residual holds, in order: on the other nodes, or on all."""
    local_index = next(ranks.index(rank) for ranks in nodes if rank in ranks)
    return [ranks[local_index] for ranks in nodes if with_own or rank not in ranks]


def _length(owner: int, chunk: int, num_elements: int) -> int:
    """Return how many elements of an owner's chunk are not padding."""
    return max(0, min(chunk, num_elements - owner * chunk))


def _residual(layout: Layout, totals: Totals, reduction: Reduction, backend: Any) -> torch.Tensor:
    """Return the part of `totals` that this rank will send."""
    nodes = ranks_by_node(backend.node_of_rank)
    own = reduction.process_group.rank()
    num_elements = reduction.num_elements
    chunk = -(-num_elements // reduction.process_group.size())

    def values(owner: int) -> torch.Tensor:
        length = _length(owner, chunk, num_elements)
        taken = layout.take(totals, reduction.first_element + owner * chunk, length)
        return torch.nn.functional.pad(taken, (0, chunk - length))

    if backend.options.tiers == "flat":
        residual = torch.zeros(num_elements)
        residual[own * chunk : (own + 1) * chunk] = values(own)[: _length(own, chunk, num_elements)]
        return residual
    owners = _owners(nodes, own, backend.options.own_piece == "coded")
    follows = {ranks[i]: nodes[(n + 1) % len(nodes)][i] for n, ranks in enumerate(nodes) for i in range(len(ranks))}
    pieces = [values(owner) if follows[owner] == own else torch.zeros(chunk) for owner in owners]
    return torch.cat(pieces)
