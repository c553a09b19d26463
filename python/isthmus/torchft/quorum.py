"""The members of some steps: their backend, and the step that is under way."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from isthmus.torchft.residuals import Place

if TYPE_CHECKING:
    from isthmus import _C

_STEP_BITS = 40  # of the step in packets (UnitStates::kStepBits); the others hold the quorum's number
_STEP_MASK = (1 << _STEP_BITS) - 1
_NUMBER_MASK = (1 << (64 - _STEP_BITS)) - 1


class Quorum:
    """A backend over the members of a quorum. A step that was not committed is undone before the next one."""

    def __init__(self, backend: _C.Backend, rank: int, number: int) -> None:
        self.backend = backend
        self.place = Place(rank, backend.node_of_rank)
        self.number = number
        self.error: Exception | None = None  # the first that a manager's reduction met
        self._has_begun = False
        self._must_undo = False
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

    def unit_name(self, name: str) -> str:
        """Return the name of the step's next reduction under `name`.

        There are several with several backward passes in a step, or models whose units have equal names.
        """
        self._uses[name] += 1
        return name if self._uses[name] == 1 else f"{name} ({self._uses[name]})"

    def end(self) -> list[dict[str, Any]]:
        """End threads and connections. Return the states of units, as they were after the last committed step."""
        return self.backend.end(undo=self._has_begun or self._must_undo)
