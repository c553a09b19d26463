"""Moves residuals from one quorum to the next, whose members own other chunks of the same gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from isthmus.group.nodes.node_map import tiers_of


@dataclass(frozen=True)
class Place:
    """Where this rank stands in a group of two tiers."""

    rank: int
    node_of_rank: Sequence[int]

    def rail(self) -> list[int]:
        """Return the ranks of this rank's rail, by node."""
        return tiers_of(self.rank, self.node_of_rank)[1]

    def chunk_elements(self, num_elements: int) -> int:
        """Return how many elements of a gradient each rank owns."""
        return -(-num_elements // len(self.node_of_rank))


def moved(state: dict[str, Any], before: Place, now: Place) -> dict[str, Any]:
    """Return the state of an all-reduce's unit (`Backend.unit_states`) for another place.

    With one rank a node no element is lost. With several, this rank keeps those of the chunks that its rail has in both
    groups; other ranks of its node may have dropped the rest.
    """
    scale = state["scale"]
    if scale == 0 or state["residual"].numel() == 0:
        return state
    unsent = _by_element(state, before, scale)
    chunk = now.chunk_elements(state["num_elements"])
    unsent = torch.nn.functional.pad(unsent, (0, chunk * len(now.node_of_rank) - len(unsent)))
    chunks = torch.split(unsent, chunk)
    return state | {
        "residual": torch.cat([chunks[rank] for rank in now.rail() if rank != now.rank]),
        "result_residual": chunks[now.rank] * scale,
    }


def _by_element(state: dict[str, Any], place: Place, scale: float) -> torch.Tensor:
    """Return what was not sent of each element, in units of the gradient: zero where other rails own it."""
    num_elements = state["num_elements"]
    chunk = place.chunk_elements(num_elements)
    chunks = [torch.zeros(chunk) for _ in place.node_of_rank]
    others = [rank for rank in place.rail() if rank != place.rank]
    for rank, piece in zip(others, torch.split(state["residual"], chunk), strict=True):
        chunks[rank] = piece
    chunks[place.rank] = state["result_residual"] / scale
    return torch.cat(chunks)[:num_elements]
