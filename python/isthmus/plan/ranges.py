"""Errors for numbers out of range and for unknown names."""

from collections.abc import Collection, Sequence


def check_range(name: str, value: float, low: float, high: float) -> None:
    """Raise ValueError naming the value and its range unless it lies in it. NaN does not."""
    if not low <= value <= high:
        raise ValueError(f"{name} {_shown(value)}: expected {_shown(low)} to {_shown(high)}")


def check_choice(name: str, value: str, known: Collection[str]) -> None:
    """Raise ValueError naming the value and what it may be unless it is one of those known."""
    if value not in known:
        raise ValueError(f"{name} '{value}': expected one of {', '.join(known)}")


def check_names(kind: str, names: Sequence[str], known: Collection[str]) -> None:
    """Raise ValueError for unknown or repeated names, or none at all. kind: what they name, "arm"."""
    if not names:
        raise ValueError(f"no {kind}: expected some of {', '.join(known)}")
    for name in names:
        if name not in known:
            raise ValueError(f"{kind} '{name}': expected some of {', '.join(known)}")
        if names.count(name) > 1:
            raise ValueError(f"{kind} '{name}' is named twice")


def _shown(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"
