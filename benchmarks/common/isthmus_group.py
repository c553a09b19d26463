"""Process groups beside the world's; the options of those of Isthmus, and what they have sent."""

from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch.distributed as dist

import isthmus
from isthmus.base import native
from isthmus.benchmarks.common.recorder import COMMUNICATION_PHASES, PHASE_OF_KIND
from isthmus.report.summary import crossing

#: The part of a step's bytes whose size no formula knows.
WEIGHT_PACKETS = "weight packets"


def all_options(given: Mapping[str, str]) -> dict[str, Any]:
    """The values of all options of Isthmus where these are given."""
    options = isthmus.Options(**given)  # type: ignore[arg-type]
    return {name: getattr(options, name) for name, *_ in native.load().option_fields()}


def sent_bytes(group: dist.ProcessGroup) -> Counter[str]:
    """The bytes that this rank handed over for other nodes so far, by phase, and those of packets of weights.

    group: with backend `isthmus`.
    """
    stats = isthmus.stats(group)
    sent = Counter(dict.fromkeys(COMMUNICATION_PHASES, 0))
    for kind, num_bytes in crossing(stats).by_kind.items():
        sent[PHASE_OF_KIND[kind]] += num_bytes
    gathers = [unit for unit in stats["units"] if unit["collective"] == "all_gather"]
    sent[WEIGHT_PACKETS] = sum(unit["packet_bytes"] for unit in gathers)
    return sent


def new_group(
    backend: str, timeout: timedelta, ranks_of_groups: list[list[int]] | None = None, options: Any = None
) -> Any:
    """A group over all ranks, or this rank's one of several that share no rank (None if it is in none).

    Collective over all ranks.
    """
    if ranks_of_groups is None:
        return dist.new_group(backend=backend, timeout=timeout, pg_options=options)
    group, _ = dist.new_subgroups_by_enumeration(  # type: ignore[no-untyped-call]
        ranks_of_groups, timeout=timeout, backend=backend, pg_options=options
    )
    return group
