"""Process groups of Isthmus beside others in one world, and their counters."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

import isthmus
from isthmus import native
from isthmus.benchmarks.common.phases import COMMUNICATION_PHASES, PHASE_OF_KIND

_COUNTERS = ("payload_bytes", "seconds", "codec", "calls", "weights")
_SECONDS = ("intra_s", "exchange_s", "encode_s", "decode_s")


@dataclass(frozen=True)
class Counters:
    """A snapshot of this rank's counters."""

    #: Payload handed over for other nodes, by phase of a step.
    payload_bytes: Counter[str]
    #: Seconds inside Isthmus, by step of its path, over all collectives.
    seconds: Counter[str]
    #: Codec's counts of elements.
    codec: Counter[str]
    #: Collectives that Isthmus carried, reductions that it compressed, and calls that stayed exact, by reason.
    calls: Counter[str]
    #: Gathers of weights as differences: how many, those that were unchanged and whole, and what packets held.
    weights: Counter[str]

    def since(self, before: "Counters") -> dict[str, dict[str, Any]]:
        """The differences from an earlier snapshot, as plain values."""
        return {name: _difference(getattr(self, name), getattr(before, name)) for name in _COUNTERS}


class IsthmusGroup:
    """A group with backend `isthmus` over all ranks, or this rank's one of several that share no rank.

    Collective over all ranks. `group` is None on a rank that no one of `ranks_of_groups` has.
    """

    def __init__(
        self, options: Mapping[str, str], timeout: timedelta, ranks_of_groups: list[list[int]] | None = None
    ) -> None:
        asked = isthmus.Options(**options)  # type: ignore[arg-type]
        self.options: dict[str, Any] = {name: getattr(asked, name) for name, *_ in native.load().option_fields()}
        self.group: dist.ProcessGroup = new_group("isthmus", timeout, ranks_of_groups, asked)

    def counters(self) -> Counters:
        """The present counters."""
        stats = isthmus.stats(self.group)
        kinds = stats["collectives"]
        payload = Counter(dict.fromkeys(COMMUNICATION_PHASES, 0))
        for kind, counted in kinds.items():
            sent = sum(counted[tier]["inter_node_sent_bytes"] for tier in ("intra", "inter", "flat"))
            payload[PHASE_OF_KIND[kind]] += sent
        seconds = {name: sum(counted[name] for counted in kinds.values()) for name in _SECONDS}
        calls = {kind: counted["calls"] for kind, counted in kinds.items()}
        calls["compressed"] = stats["compressed_calls"]
        calls |= {f"exact: {reason}": count for reason, count in stats["exact_calls"].items()}
        gathers = [unit for unit in stats["units"] if unit["collective"] == "all_gather"]
        weights = {name: stats["weights"][name] for name in ("gathers", "unchanged")}
        weights["whole"] = sum(stats["weights"]["whole"].values())
        weights |= {name: sum(unit[name] for unit in gathers) for name in ("coded_elements", "packet_bytes")}
        return Counters(payload, Counter(seconds), Counter(stats["codec"]), Counter(calls), Counter(weights))


def new_group(
    backend: str, timeout: timedelta, ranks_of_groups: list[list[int]] | None = None, options: Any = None
) -> Any:
    """A group over all ranks, or this rank's one of several that share no rank (None if it is in none)."""
    if ranks_of_groups is None:
        return dist.new_group(backend=backend, timeout=timeout, pg_options=options)
    group, _ = dist.new_subgroups_by_enumeration(  # type: ignore[no-untyped-call]
        ranks_of_groups, timeout=timeout, backend=backend, pg_options=options
    )
    return group


def total_counters(groups: Sequence[IsthmusGroup]) -> Counters:
    """The sums of the counters of several groups of this rank."""
    total = Counters(Counter(), Counter(), Counter(), Counter(), Counter())
    for group in groups:
        counters = group.counters()
        for name in _COUNTERS:
            getattr(total, name).update(getattr(counters, name))  # keeps zeros, unlike +
    return total


def _difference(after: Counter[str], before: Counter[str]) -> dict[str, Any]:
    return {name: value - before[name] for name, value in after.items()}
