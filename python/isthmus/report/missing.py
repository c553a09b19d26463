"""What was asked for and does not come, and what was dropped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from isthmus import native
from isthmus.report.statistics import named_backends

if TYPE_CHECKING:
    from isthmus import _C

#: How a note begins that says why reductions of a backward pass stayed exact, and what to do.
_EXACT = "exact reductions: "
_TOO_SMALL = "below min_elements"

_SPIKES = "residuals dropped: "
_MOST_NAMES = 5

Group = tuple["_C.Options", dict[str, Any]]  # options and `isthmus.stats`


def missing() -> dict[str, str]:
    """Return, by subject, what the groups of this process were asked for and have not done so far, and what to do.

    That they compress gradients: the most frequent reason for which those of backward passes stayed exact. What the
    options exclude, and exact first steps (``dense_steps``), are no such reason. That they send differences of weights.
    And that they treat the units that globs name: a mistyped one would change nothing, or leave everything exact.
    """
    groups = [(backend.options, backend.stats()) for backend in named_backends().values()]
    texts = {"gradients": _gradients(groups), "weights": _weights(groups), "units": _unmatched_globs(groups)}
    return {subject: text for subject, text in texts.items() if text}


def spikes() -> str:
    """Return what to do about residuals that were dropped after gradients far larger than before; "" if none were."""
    for backend in named_backends().values():
        for note in backend.stats()["notes"]:
            if note.startswith(_SPIKES):
                return str(note)
    return ""


def _gradients(groups: Sequence[Group]) -> str:
    asked = [(options, found) for options, found in groups if options.codec != "none"]
    if any(found["compressed_calls"] for _, found in asked):
        return ""
    reasons = [reason for options, found in asked for reason in _reasons(options, found)]
    return f"no gradient was compressed in the first two steps: {max(reasons)[1]}" if reasons else ""


def _reasons(options: _C.Options, found: dict[str, Any]) -> Iterator[tuple[int, str]]:
    """How many reductions stayed exact, and why."""
    for note in found["notes"]:
        if note.startswith(_EXACT):
            yield int(note.removeprefix(_EXACT).split()[0]), note
    if calls := found["exact_calls"].get(_TOO_SMALL):
        yield calls, f"{_EXACT}{calls} of fewer elements than min_elements={options.min_elements}: set a smaller one"


def _weights(groups: Sequence[Group]) -> str:
    asked = [found for options, found in groups if options.weights == "delta"]
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
    for units in dict.fromkeys(options.units for options, _ in groups):
        globs = [glob.strip() for glob in units.split(",")]
        unmatched = [glob for glob in globs if not any(_matches(glob.removeprefix("!"), name) for name in names)]
        if names and unmatched:
            complaints.append(f"option units={units}: no unit matches {', '.join(unmatched)}")
    shown = ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")
    return f"{'; '.join(complaints)}; there are {len(names)}: {shown}" if complaints else ""


def _matches(glob: str, name: str) -> bool:
    is_matched: bool = native.load().unit_is_compressed(glob, name)
    return is_matched
