"""What a training benchmark says at its end: what to set."""

from collections.abc import Callable
from typing import Any

from isthmus.plan.strategies import ARMS, Strategy

#: Begins a note that casts doubt on the figures.
DISTURBED = "DISTURBED"
#: Medians of a few steps repeat within this share from run to run.
_EQUAL_TIMES = 0.05
#: Options that say nothing about an arm: the defaults.
_IN_ALL_ARMS = (("tiers", "two"), ("units", "*"))


def _fastest_arm(arms: dict[str, dict[str, Any]], kind: Callable[[Strategy], bool]) -> str | None:
    """The arm of that kind with the shortest step, if there is one."""
    candidates = [name for name in arms if kind(ARMS[name])]
    return min(candidates, key=lambda name: float(arms[name]["median_step_s"]), default=None)


def advice(arms: dict[str, dict[str, Any]], ranks_per_node: int, notes: list[str]) -> str:
    """The fastest arm on Isthmus, with its options, if it beats the fastest plain one; else that one."""
    plain = _fastest_arm(arms, lambda arm: arm.is_plain)
    ours = _fastest_arm(arms, lambda arm: not arm.is_plain)
    if plain is None or ours is None:
        return "Nothing to set: it takes a plain arm and one on Isthmus to compare."
    ratio = arms[plain]["median_step_s"] / arms[ours]["median_step_s"]
    times = f"{arms[ours]['median_step_s']:.3g} s a step against {arms[plain]['median_step_s']:.3g} s"
    losses = f"validation loss {arms[ours]['val_loss']:.3f} against {arms[plain]['val_loss']:.3f}"
    if ratio > 1 + _EQUAL_TIMES:
        text = (
            f"Set {_settings(ours)}, {_layout(ours, ranks_per_node)}: {ours} was the fastest arm, {ratio:.2f} times as "
            f"fast as {plain}, the best plain one ({times}; {losses})."
        )
    else:
        text = (
            f"Set nothing: plain {plain}, {_layout(plain, ranks_per_node)}, is as good here. {ours}, the fastest arm "
            f"on Isthmus, was {ratio:.2f} times as fast ({times})."
        )
    disturbed = any(note.startswith(DISTURBED) for note in notes)
    return text + (" The run was disturbed, see above: repeat it first." if disturbed else "")


def _settings(arm: str) -> str:
    """The options of an arm on Isthmus, in both ways to give them, but for those that are the same in all arms."""
    options = {name: value for name, value in (ARMS[arm].options or {}).items() if (name, value) not in _IN_ALL_ARMS}
    keywords = ", ".join(f"{name}={value if value.isdecimal() else repr(value)}" for name, value in options.items())
    variables = " ".join(f"ISTHMUS_{name.upper()}={value}" for name, value in options.items())
    return f'init_process_group("isthmus", pg_options=isthmus.Options({keywords})) (or {variables})'


def _layout(arm: str, ranks_per_node: int) -> str:
    if ARMS[arm].hybrid_sharded:
        return "sharded in the node and replicated across nodes"
    kept = f" with reshard_after_forward={ranks_per_node}" if ARMS[arm].keeps_on_node else ""
    return f"sharded over all ranks{kept}"
