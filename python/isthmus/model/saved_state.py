"""The saved form of residuals.

A state holds, for every rank, one entry "rank3", text that describes its groups and units, and one tensor for each
residual, "rank3/0/5/residual": group 0, unit 5. So keys of different ranks differ, and a state may be saved beside
others by `torch.distributed.checkpoint`, which merges them.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from isthmus.group.nodes.node_map import ranks_by_node

VERSION = 3
RESIDUALS = ("residual", "result_residual")


@dataclass(frozen=True)
class LoadReport:
    """The outcome of loading each unit of a checkpoint, by name."""

    restored: tuple[str, ...] = ()  # names of units, restored bit for bit
    dropped: tuple[tuple[str, str], ...] = ()  # names, with the reason why their residual was dropped


@dataclass(frozen=True)
class SavedUnit:
    """One unit on one rank, without its tensors. All but the last fields are those of the native module's states."""

    name: str
    num_elements: int
    dtype: str
    collective: str
    layout: int  # the hash in the unit's key
    step: int
    scale: float
    residual_elements: int
    result_residual_elements: int
    is_held: bool  # a model holds the unit
    parameters: str  # the layout of all its parameters, as text; "" if that was not known

    @property
    def has_residual(self) -> bool:
        """Return whether the unit has anything that was not sent yet."""
        return any(getattr(self, f"{kind}_elements") for kind in RESIDUALS)


@dataclass(frozen=True)
class SavedGroup:
    """One process group on one rank."""

    ranks: tuple[int, ...]
    node_of_rank: tuple[int, ...]
    options: Mapping[str, str]
    units: tuple[SavedUnit, ...]

    @cached_property
    def nodes(self) -> list[list[int]]:
        """Return the ranks of each node, numbered in the group."""
        return ranks_by_node(self.node_of_rank)


def to_text(groups: Sequence[SavedGroup]) -> str:
    """Return the text that a state holds for one rank."""
    return json.dumps({"version": VERSION, "groups": [dataclasses.asdict(group) for group in groups]})


def _from_text(key: str, text: Any) -> list[SavedGroup]:
    if not isinstance(text, str):
        raise ValueError(f"{key!r} is a {type(text).__name__}, not the description of a rank: is this isthmus's state?")
    try:
        content = json.loads(text)
        version = content["version"]
        groups = [_group_from(group) for group in content["groups"]] if version == VERSION else []
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"{key!r} is damaged: {error!r}") from error
    if version != VERSION:
        raise ValueError(
            f"{key!r} has version {version}, and this isthmus reads version {VERSION}: go on without the residuals, of "
            "which a part of earlier gradients then never arrives, or load them with the isthmus that saved them"
        )
    return groups


def _group_from(group: Mapping[str, Any]) -> SavedGroup:
    ranks, node_of_rank = _numbers(group["ranks"]), _numbers(group["node_of_rank"])
    if len(ranks) != len(node_of_rank):
        raise ValueError(f"{len(ranks)} ranks are on {len(node_of_rank)} nodes")
    return SavedGroup(ranks, node_of_rank, dict(group["options"]), tuple(map(_unit_from, group["units"])))


_TYPES: dict[str, Any] = {"str": str, "int": int, "float": int | float, "bool": bool}


def _unit_from(values: Mapping[str, Any]) -> SavedUnit:
    unit = SavedUnit(**values)
    for field in dataclasses.fields(unit):
        value = getattr(unit, field.name)
        if not isinstance(value, _TYPES[str(field.type)]):
            raise TypeError(f"{field.name} of a unit is a {type(value).__name__}")
    return unit


def _numbers(values: Any) -> tuple[int, ...]:
    if not isinstance(values, list) or not all(isinstance(value, int) for value in values):
        raise TypeError("expected a list of whole numbers")
    return tuple(values)


@dataclass
class Source:
    """The source of a load: a state, or a checkpoint that is read piece by piece."""

    texts: Mapping[int, Any]  # by rank
    sizes: Mapping[str, int]  # of tensors, by key
    read: Callable[[Sequence[str]], dict[str, torch.Tensor]]
    prefix: str = ""  # of keys

    @cached_property
    def ranks(self) -> dict[int, list[SavedGroup]]:
        """Return what each rank saved about its groups."""
        return {rank: _from_text(f"rank{rank}", self.texts[rank]) for rank in sorted(self.texts)}

    def check(self, rank: int, group: int) -> None:
        """Raise ValueError if a residual of this rank and group is missing or too short."""
        for index, unit in enumerate(self.ranks[rank][group].units):
            for kind in RESIDUALS:
                expected = getattr(unit, f"{kind}_elements")
                found = self.sizes.get(self.prefix + tensor_key(rank, group, index, kind), 0)
                if found == expected:
                    continue
                what = f"the {kind} of unit {unit.name!r} of rank {rank}"
                if found:
                    raise ValueError(f"{what} has {found} elements where {expected} were saved: the state is damaged")
                raise ValueError(
                    f"{what} is missing. Into an isthmus.state_dict(), torch.distributed.checkpoint.load() reads only "
                    "what this process has already, which is nothing at first: use isthmus.load_checkpoint()"
                )

    def residuals(self, rank: int, group: int, unit: int) -> dict[str, torch.Tensor]:
        """Read the residuals of one unit to the CPU; an empty tensor stands for none."""
        keys = {kind: self.prefix + tensor_key(rank, group, unit, kind) for kind in RESIDUALS}
        tensors = self.read([key for key in keys.values() if self.sizes.get(key)])
        return {kind: tensors.get(key, torch.empty(0)).cpu() for kind, key in keys.items()}  # map_location="cuda"


def tensor_key(rank: int, group: int, unit: int, kind: str) -> str:
    """Return the key of a residual in a state."""
    return f"rank{rank}/{group}/{unit}/{kind}"


def source_of_state(state: Mapping[str, Any]) -> Source:
    """Return a source that reads what `state_dict` returned."""
    texts = {int(key.removeprefix("rank")): text for key, text in state.items() if re.fullmatch(r"rank\d+", key)}
    if not texts:
        raise ValueError('there is no entry "rank<number>": this is no isthmus.state_dict()')
    sizes = {key: value.numel() for key, value in state.items() if isinstance(value, torch.Tensor)}
    return Source(texts, sizes, lambda keys: {key: state[key] for key in keys})
