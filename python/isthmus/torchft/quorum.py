"""The members of some steps: their backend, the step that is under way, and what they had not sent before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from isthmus.base import native
from isthmus.group.nodes.node_map import tiers_of
from isthmus.model.calls import Described

if TYPE_CHECKING:
    from isthmus import _C

_STEP_BITS = 40  # of the step in packets (UnitStates::kStepBits); the others hold the quorum's number
_STEP_MASK = (1 << _STEP_BITS) - 1
_NUMBER_MASK = (1 << (64 - _STEP_BITS)) - 1


class Quorum:
    """A backend over the members of a quorum. A step that was not committed is undone before the next one."""

    def __init__(self, backend: _C.Backend, rank: int, number: int) -> None:
        self.backend = backend
        self.place = RankPosition(rank, backend.node_of_rank)
        self.number = number
        self.error: Exception | None = None  # the first that a manager's reduction met
        self._has_begun = False
        self._must_undo = False
        self._units: dict[str, _C.Unit] = {}
        self._uses: Counter[str] = Counter()  # how often the step has reduced under each name

    def begin_step(self, step: int, *, is_new_here: bool) -> None:
        """Begin a step, unless it has begun. is_new_here: this member has loaded another one's state for it."""
        if self._has_begun:
            return
        if self._must_undo:
            self.backend.undo_step()
        if is_new_here:  # the other member's state says nothing of residuals
            self.backend.clear_units()
        self.backend.begin_step((self.number & _NUMBER_MASK) << _STEP_BITS | step & _STEP_MASK)
        self._has_begun, self._must_undo = True, False
        self._uses.clear()

    def end_step(self, committed: bool) -> None:
        """End the step."""
        self._must_undo |= self._has_begun and not committed
        self._has_begun = False

    def call_of(self, gradient: Described) -> _C.UnitCall:
        """Return the call of the step's next reduction under a name.

        There are several with several backward passes in a step, or models whose units have equal names.
        """
        name, sections, with_gradients, exact = gradient
        self._uses[name] += 1
        name = name if self._uses[name] == 1 else f"{name} ({self._uses[name]})"
        if name not in self._units:
            self._units[name] = self.backend.unit(name)
        made: _C.UnitCall = native.load().UnitCall(self._units[name], sections, with_gradients, exact)
        return made

    def end(self) -> list[dict[str, Any]]:
        """End threads and connections. Return the states of units, as they were after the last committed step."""
        return self.backend.end(undo=self._has_begun or self._must_undo)


# --- Residuals move to the next quorum, whose members own other chunks of the same gradients ---


@dataclass(frozen=True)
class RankPosition:
    """Where this rank stands in a group of two tiers."""

    rank: int
    node_of_rank: Sequence[int]

    def rail(self) -> list[int]:
        """Return the ranks of this rank's rail, by node."""
        return tiers_of(self.rank, self.node_of_rank)[1]

    def chunk_elements(self, num_elements: int) -> int:
        """Return how many elements of a gradient each rank owns."""
        return -(-num_elements // len(self.node_of_rank))


def moved(state: dict[str, Any], before: RankPosition, now: RankPosition) -> dict[str, Any]:
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


def _by_element(state: dict[str, Any], place: RankPosition, scale: float) -> torch.Tensor:
    """Return what was not sent of each element, in units of the gradient: zero where other rails own it."""
    num_elements = state["num_elements"]
    chunk = place.chunk_elements(num_elements)
    chunks = [torch.zeros(chunk) for _ in place.node_of_rank]
    others = [rank for rank in place.rail() if rank != place.rank]
    for rank, piece in zip(others, torch.split(state["residual"], chunk), strict=True):
        chunks[rank] = piece
    chunks[place.rank] = state["result_residual"] / scale
    return torch.cat(chunks)[:num_elements]
