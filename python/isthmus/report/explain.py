"""``isthmus.explain``: which codec each unit has, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from isthmus.report.statistics import stats

if TYPE_CHECKING:
    import torch.distributed as dist


def explain(group: dist.ProcessGroup | None = None) -> str:
    """One line for each unit that was reduced in `group` (default: each group of the process, below its name).

    A line says which codec the unit has, and why. Where a group has reduced no unit, one says why. The error is the
    measured one, and missing before the first measurement. Equal on all ranks except for the error, and for units of
    weights (``weights="delta"``), whose lines tell of this rank's own shards.

    Raises ValueError where there is no group of Isthmus, or `group` is one that this rank is not in.
    """
    if group is not None:
        return "\n".join(_lines(stats(group)))
    groups = stats()["groups"]
    if len(groups) == 1:
        return "\n".join(_lines(next(iter(groups.values()))))
    parts = []
    for name, found in groups.items():
        parts.append(f"{name} ({found['node_map']}):")
        parts += [f"  {line}" for line in _lines(found)]
    return "\n".join(parts)


def _lines(found: dict[str, Any]) -> list[str]:
    units = sorted(found["units"], key=lambda unit: (unit["name"], unit["collective"], unit["num_elements"]))
    return [_explain_unit(unit) for unit in units] or [f"no gradient was compressed: {why_exact(found)}"]


def why_exact(found: dict[str, Any]) -> str:
    """Why a group's reductions stayed exact, by its `isthmus.stats`, the most frequent reason first."""
    if found["one_tier"]:
        return str(found["one_tier"])
    counted = sorted(found["exact_calls"].items(), key=lambda item: (-item[1], item[0]))
    if not counted:
        return "nothing was reduced yet, or nothing that is taken for a gradient"
    return "; ".join([*(f"{calls} calls: {reason}" for reason, calls in counted), *found["notes"]])


def _explain_unit(unit: dict[str, Any]) -> str:
    is_weights = unit["codec"] == "delta"
    what = "weights" if is_weights else unit["collective"]
    line = f"{unit['name']} ({what}, {unit['num_elements']:,} elements): "
    if is_weights:
        line += f"{unit['calls']} gathers, {unit['unchanged_calls'] / unit['calls']:.0%} unchanged"
    else:
        line += unit["settings"] or unit["codec"]
    line += f" ({unit['reason']})" if unit["reason"] else ""
    if unit["bits_per_element"]:
        line += f"; {unit['bits_per_element']:.3g} bits an element sent"
    if unit["relative_squared_error"] is not None:
        line += f", relative squared error {unit['relative_squared_error']:.3g} measured"
    return line
