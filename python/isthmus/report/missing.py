"""What was asked for and does not come, and what was dropped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from isthmus import native
from isthmus.report.statistics import named_backends

if TYPE_CHECKING:
    from isthmus import _C

_MOST_NAMES = 5

Group = tuple["_C.Backend", dict[str, Any]]  # with its `isthmus.stats`


def missing() -> dict[str, str]:
    """Return, by subject, what the groups of this process were asked for and have not done so far, and what to do.

    That they compress gradients: the most frequent reason for which those of backward passes stayed exact. What the
    options exclude, and exact first steps (``dense_steps``), are no such reason. That they send differences of weights.
    And that they treat the units that globs name: a mistyped one would change nothing, or leave everything exact.
    """
    groups = [(backend, backend.stats()) for backend in named_backends().values()]
    texts = {"gradients": _gradients(groups), "weights": _weights(groups), "units": _unmatched_globs(groups)}
    return {subject: text for subject, text in texts.items() if text}


def spikes() -> str:
    """Return what to do about residuals that were dropped after gradients far larger than before; "" if none were."""
    notes = (native.load().spikes_note(backend.stats()["codec"]["spikes"]) for backend in named_backends().values())
    return next(filter(None, notes), "")


def _gradients(groups: Sequence[Group]) -> str:
    asked = [(backend, found) for backend, found in groups if backend.options.codec != "none"]
    if any(found["compressed_calls"] for _, found in asked):
        return ""
    reasons = [reason for backend, _ in asked for reason in _reasons(backend)]
    return f"no gradient was compressed in the first two steps: {max(reasons)[1]}" if reasons else ""


def _reasons(backend: _C.Backend) -> Iterator[tuple[int, str]]:
    """How many reductions stayed exact, and why."""
    core = native.load()
    for reason, calls in backend.exact_calls().items():
        if reason == core.Reason.TOO_SMALL:
            least = backend.options.min_elements
            yield calls, f"exact reductions: {calls} of fewer elements than min_elements={least}: set a smaller one"
        elif note := core.exact_note(reason, calls):
            yield calls, note


def _weights(groups: Sequence[Group]) -> str:
    asked = [found for backend, found in groups if backend.options.sends_differences]
    if not asked or any(found["weights"]["gathers"] for found in asked):
        return ""
    return (
        "option weights=delta changed nothing in the first two steps: it is for parameters that FSDP gathers, "
        "min_elements or more at once (DDP gathers none)"
    )


def _unmatched_globs(groups: Sequence[Group]) -> str:
    names = sorted(
        {unit["name"] for _, found in groups for unit in found["units"] if unit["collective"] != "all_gather"}
    )
    complaints = []
    for units in dict.fromkeys(backend.options.units for backend, _ in groups):
        globs = [glob.strip() for glob in units.split(",")]
        unmatched = [glob for glob in globs if not any(_matches(glob.removeprefix("!"), name) for name in names)]
        if names and unmatched:
            complaints.append(f"option units={units}: no unit matches {', '.join(unmatched)}")
    shown = ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")
    return f"{'; '.join(complaints)}; there are {len(names)}: {shown}" if complaints else ""


def _matches(glob: str, name: str) -> bool:
    is_matched: bool = native.load().unit_is_compressed(glob, name)
    return is_matched
