"""``isthmus.explain``: which codec each unit has, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from isthmus.report.statistics import stats

if TYPE_CHECKING:
    import torch.distributed as dist


def explain(group: dist.ProcessGroup | None = None) -> str:
    """One line for each unit that was reduced in `group` (default: all ranks): its codec, and why it has this one.

    With ``codec="auto"`` the reason is the choice, with the times and errors behind it; otherwise the options. The
    error is the measured one, and missing before the first measurement. Equal on all ranks except for the error, and
    for units of weights (``weights="delta"``), whose lines tell of this rank's own shards.
    """
    units = sorted(stats(group)["units"], key=lambda unit: (unit["name"], unit["collective"], unit["num_elements"]))
    return "\n".join(map(explain_unit, units))


def explain_unit(unit: dict[str, Any]) -> str:
    """The line of one unit of `isthmus.stats`."""
    if unit["codec"] == "delta":
        return _explain_weights(unit)
    line = f"{unit['name']} ({unit['collective']}, {unit['num_elements']:,} elements): "
    line += unit["reason"] if unit["reason"].startswith(unit["codec"]) else _as_the_options_say(unit)
    if unit["bits_per_element"]:
        line += f"; {unit['bits_per_element']:.3g} bits an element sent"
    if unit["relative_squared_error"] is not None:
        line += f", relative squared error {unit['relative_squared_error']:.3g} measured"
    return line


def _explain_weights(unit: dict[str, Any]) -> str:
    line = f"{unit['name']} (weights, {unit['num_elements']:,} elements): "
    line += f"{unit['calls']} gathers, {unit['unchanged_calls'] / unit['calls']:.0%} unchanged"
    if unit["bits_per_element"]:
        line += f"; {unit['bits_per_element']:.3g} bits an element sent of those that changed"
    return f"{line}; {unit['reason']}" if unit["reason"] else line


def _as_the_options_say(unit: dict[str, Any]) -> str:
    settings = unit["settings"] or unit["codec"]
    return f"{settings} ({unit['reason']})" if unit["reason"] else f"{settings}, as the options say"
