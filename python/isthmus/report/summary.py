"""``isthmus.summary``: whether compression helped, on one screen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from isthmus.base.backends import options_without_effect
from isthmus.base.job import trains_with_muon
from isthmus.report.advice import to_try
from isthmus.report.checks import TIERS, in_words
from isthmus.report.explain import why_exact
from isthmus.report.statistics import named_backends, stats

if TYPE_CHECKING:
    import torch.distributed as dist

_ELEMENT_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
_WHAT = {"all_gather": "weights and other gathers", "reduce_scatter": "reduce-scatters", "all_reduce": "all-reduces"}
_GATHERS = ("allgather", "_allgather_base", "allgather_coalesced", "allgather_into_tensor_coalesced")
#: More lines of units than that are no screen.
_MOST_LINES = 12


@dataclass(frozen=True)
class Crossing:
    """Payload that this rank sent to other nodes, in bytes: in two tiers by kind, by the world backend by call.

    exact_bytes: what the same calls would have sent with codec none and plain weights.
    """

    by_kind: dict[str, int]
    by_world: dict[str, int]
    exact_bytes: int

    @property
    def sent_bytes(self) -> int:
        """What was sent in two tiers and by the world backend."""
        return sum(self.by_kind.values()) + sum(self.by_world.values())

    @property
    def weights_share(self) -> float:
        """The share of gathers in what was sent."""
        return self._share(self.by_kind["all_gather"] + sum(self.by_world.get(call, 0) for call in _GATHERS))

    @property
    def gradients_share(self) -> float:
        """The share of reductions in two tiers in what was sent."""
        return self._share(self.by_kind["reduce_scatter"] + self.by_kind["all_reduce"])

    def _share(self, part_bytes: int) -> float:
        return part_bytes / self.sent_bytes if self.sent_bytes else 0.0


def crossing(found: dict[str, Any]) -> Crossing:
    """What crossed, by `isthmus.stats`."""
    by_kind = {
        kind: sum(counted[tier]["inter_node_sent_bytes"] for tier in TIERS)
        for kind, counted in found["collectives"].items()
    }
    saved_bytes = 0
    for unit in found["units"]:
        whole_bytes = unit["coded_elements"] * _ELEMENT_BYTES.get(unit["dtype"], 0)
        # Packets of an all-reduce cross twice: the second time they hold the result.
        times = 2 if unit["collective"] == "all_reduce" else 1
        saved_bytes += times * max(0, whole_bytes - unit["packet_bytes"])
    by_world = {call: counted["sent_bytes"] for call, counted in found["world"].items() if counted["sent_bytes"]}
    return Crossing(by_kind, by_world, sum(by_kind.values()) + sum(by_world.values()) + saved_bytes)


def summary(group: dist.ProcessGroup | None = None) -> str:
    """Return, as text, what this rank sent between nodes in `group` (default: all groups) since the last `reset_stats`.

    Bytes by tier, what they would have been exact, the seconds of calls and how many of them the program waited, what
    dominates and what to try, and the units: those with equal settings on one line, and the exact ones with the reason.
    For people: programs read `isthmus.stats`. With ``log="info"`` rank 0 logs it once when it exits.

    Raises ValueError where there is no group of Isthmus, or `group` is one that this rank is not in.
    """
    hints: dict[str, None] = {}
    for backend in named_backends().values() if group is None else ():
        hints |= dict.fromkeys(options_without_effect(backend.options))
    return "\n".join(summary_lines(stats(group), list(hints)))


def summary_lines(found: dict[str, Any], hints: Sequence[str] = ()) -> Iterator[str]:
    """The lines of a summary of `isthmus.stats`. hints: come last."""
    crossed = crossing(found)
    yield f"summary: {found['node_map']}, by {found['node_map_source']}; this rank's figures"
    if not crossed.sent_bytes:
        yield "nothing crossed between nodes"
    else:
        kinds = [f"{_bytes(sent)} {_WHAT[kind]}" for kind, sent in crossed.by_kind.items() if sent]
        if crossed.by_world:
            calls = sorted(crossed.by_world.items(), key=lambda item: -item[1])
            kinds.append("by the world backend " + ", ".join(f"{_bytes(sent)} {call}" for call, sent in calls))
        ratio = crossed.exact_bytes / crossed.sent_bytes
        yield f"between nodes: {_bytes(crossed.sent_bytes)} ({', '.join(kinds)})"
        yield f"exact it would have been {_bytes(crossed.exact_bytes)}: {ratio:.2f} times as much"
    within = sum(counted["intra"]["sent_bytes"] for counted in found["collectives"].values())
    yield f"within nodes: {_bytes(within)}"
    yield from _seconds(found)
    yield from _units(found["units"])
    if not found["compressed_calls"]:
        yield f"no gradient was compressed: {why_exact(found)}"
    else:
        yield from found["notes"]
    yield from hints
    yield from to_try(found, crossed, trains_with_muon=trains_with_muon())


def _seconds(found: dict[str, Any]) -> Iterator[str]:
    phases = Counter[str]()
    for counted in found["collectives"].values():
        phases.update({name: counted[name] for name in ("intra_s", "exchange_s", "encode_s", "decode_s")})
    parts = [
        f"{phases['exchange_s']:.2f} between nodes",
        f"{phases['intra_s']:.2f} within",
        f"{phases['encode_s'] + phases['decode_s']:.2f} in codecs",
    ]
    if found["ran_s"]:
        hidden_s = max(0.0, found["ran_s"] - found["waited_s"])
        shown = f"{found['waited_s']:.2f} waited for and {hidden_s:.2f} hidden"
        yield f"seconds: {found['ran_s']:.2f} in calls, {shown}"
    if waits := in_words(found["peer_waits_s"]):
        yield f"of these, waited for others' messages: {waits}"
    if sum(phases.values()):
        yield f"seconds by phase, some beside others: {', '.join(parts)}"


def _units(units: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A line for each setting: its units, how many bits they sent, and the error that was measured."""
    alike: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for unit in units:
        what = "weights" if unit["collective"] == "all_gather" else unit["collective"]
        settings = "exact" if unit["codec"] == "none" else unit["settings"] or unit["codec"]
        alike.setdefault((what, settings, unit["reason"]), []).append(unit)
    lines = [_line_of(*key, own) for key, own in sorted(alike.items(), key=lambda item: -_elements(item[1]))]
    yield from lines[:_MOST_LINES]
    if len(lines) > _MOST_LINES:
        yield f"... {len(lines) - _MOST_LINES} more settings: isthmus.explain()"


def _elements(units: Sequence[dict[str, Any]]) -> int:
    return sum(unit["num_elements"] for unit in units)


def _line_of(what: str, settings: str, reason: str, units: Sequence[dict[str, Any]]) -> str:
    names = sorted(dict.fromkeys(unit["name"] for unit in units))
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    line = f"{len(units)} x {what} ({shown}; {_elements(units):,} elements): {settings}"
    line += f" ({reason})" if reason else ""
    coded = sum(unit["coded_elements"] for unit in units)
    if coded and settings != "exact":
        line += f"; {8 * sum(unit['packet_bytes'] for unit in units) / coded:.3g} bits an element"
    measured = [unit for unit in units if unit["relative_squared_error"] is not None]
    if measured:
        weighted = sum(unit["relative_squared_error"] * unit["num_elements"] for unit in measured)
        line += f", relative squared error {weighted / _elements(measured):.2g}"
    return line


def _bytes(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"
