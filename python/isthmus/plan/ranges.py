"""One way to say that a number is out of range."""


def check_range(name: str, value: float, low: float, high: float) -> None:
    """Raise ValueError naming the value and its range unless it lies in it. NaN does not."""
    if not low <= value <= high:
        raise ValueError(f"{name} {_shown(value)}: expected {_shown(low)} to {_shown(high)}")


def _shown(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"
