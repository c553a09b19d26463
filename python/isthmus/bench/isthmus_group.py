"""A process group of Isthmus beside others in one world, and what it counts."""

from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

import isthmus

#: The options that decide how many bytes cross, beside those that name the arm.
_OPTIONS = (
    "codec",
    "tiers",
    "ratio",
    "sparsity",
    "index_bits",
    "block_elements",
    "peel_rounds",
    "units",
    "min_elements",
    "two_tier_all_gather",
)
_SECONDS = ("intra_s", "exchange_s", "encode_s", "decode_s")


@dataclass(frozen=True)
class Counters:
    """A snapshot of this rank's counters."""

    #: Payload handed over for other nodes, by kind of collective.
    payload_bytes: Counter[str]
    #: Seconds inside Isthmus, by step of its path, over all collectives.
    seconds: Counter[str]
    #: Codec's counts of elements.
    codec: Counter[str]
    #: Collectives that Isthmus carried, reductions that it compressed, and calls that stayed exact, by reason.
    calls: Counter[str]

    def since(self, before: "Counters") -> dict[str, dict[str, Any]]:
        """What was added since an earlier snapshot, as plain values."""
        names = ("payload_bytes", "seconds", "codec", "calls")
        return {name: _difference(getattr(self, name), getattr(before, name)) for name in names}


class IsthmusGroup:
    """A group over all ranks with backend `isthmus`."""

    def __init__(self, options: dict[str, str], timeout: timedelta) -> None:
        asked = isthmus.Options(**options)  # type: ignore[arg-type]
        self.options: dict[str, Any] = {name: getattr(asked, name) for name in _OPTIONS}
        self.group = dist.new_group(backend="isthmus", timeout=timeout, pg_options=asked)

    def counters(self) -> Counters:
        """What was counted until now."""
        stats = isthmus.stats(self.group)
        kinds = stats["collectives"]
        payload = {
            kind: sum(counted[tier]["inter_node_sent_bytes"] for tier in ("intra", "inter", "flat"))
            for kind, counted in kinds.items()
        }
        seconds = {name: sum(counted[name] for counted in kinds.values()) for name in _SECONDS}
        calls = {kind: counted["calls"] for kind, counted in kinds.items()}
        calls["compressed"] = stats["compressed_calls"]
        calls |= {f"exact: {reason}": count for reason, count in stats["exact_calls"].items()}
        return Counters(Counter(payload), Counter(seconds), Counter(stats["codec"]), Counter(calls))


def _difference(after: Counter[str], before: Counter[str]) -> dict[str, Any]:
    return {name: value - before[name] for name, value in after.items()}
