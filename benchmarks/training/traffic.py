"""Bytes of recorded collectives on the links between nodes: as counted, and by the formulas of `plan.volumes`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from isthmus.benchmarks.common.phases import COMMUNICATION_PHASES, PHASE_OF
from isthmus.plan.packets import WireOptions
from isthmus.plan.strategies import world_formula
from isthmus.plan.volumes import Collective, Formula, IsthmusFormula, Kind, sent_bytes

#: An interface counts headers, acknowledgements and control traffic on top of the payload: up to this share, and in a
#: step so many bytes of messages that are hardly longer than their headers, as gathers of unchanged weights send.
_MOST_SHARE = 0.05
_SMALL_MESSAGES_BYTES = 8192
#: How FSDP2 calls torch.distributed, and which collective that is.
_KIND_OF = {
    "all_gather_into_tensor": Kind.ALL_GATHER,
    "reduce_scatter_tensor": Kind.REDUCE_SCATTER,
    "all_reduce": Kind.ALL_REDUCE,
}


def is_near(link_bytes: float, predicted_bytes: float) -> bool:
    """Whether links sent in a step what was predicted, and not more on top of it than protocols do."""
    return abs(link_bytes - predicted_bytes) <= _MOST_SHARE * predicted_bytes + _SMALL_MESSAGES_BYTES


def formula_of_arm(options: dict[str, Any] | None, backend: str, ranks_per_node: int) -> Formula:
    """The formula of an arm with these options of Isthmus, or (None) of one on the ordinary backend alone.

    Packets of weights are left out: only the run knows their sizes.
    """
    world = world_formula(backend, ranks_per_node)
    return world if options is None else IsthmusFormula(replace(WireOptions.of(options), weight_bits=0), world)


def collective_of(recorded: dict[str, Any]) -> Collective:
    """The collective of a record (`recorder.Collective.as_json`)."""
    kind = _KIND_OF[recorded["name"]]
    return Collective(kind, tuple(recorded["ranks"]), recorded["num_elements"], recorded["element_bytes"])


def formula_bytes(
    collectives_by_rank: Sequence[Sequence[dict[str, Any]]], formula: Formula, counted_only: bool = False
) -> dict[str, int]:
    """Bytes between nodes of one step, summed over ranks, by phase; only those that transports count, if so asked."""
    total = dict.fromkeys(COMMUNICATION_PHASES, 0)
    for rank, collectives in enumerate(collectives_by_rank):
        for collective in collectives:
            sent = sent_bytes(formula(collective_of(collective), rank))
            total[PHASE_OF[collective["name"]]] += sent.counted_bytes if counted_only else sent.num_bytes
    return total


def audited_link_bytes(collectives_by_rank: Sequence[Sequence[dict[str, Any]]]) -> dict[str, int]:
    """Bytes that the links sent in one audited step, summed over nodes, by phase."""
    total = dict.fromkeys(COMMUNICATION_PHASES, 0)
    for collectives in collectives_by_rank:
        for collective in collectives:
            total[PHASE_OF[collective["name"]]] += collective["link_sent_bytes"] or 0
    return total


def audited_collectives(collectives_by_rank: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The collectives of an audited step in order, with the bytes of all nodes' links (None: not counted).

    All ranks issue the same ones, in groups of equal size: those within nodes, or along rails, at the same time.
    """
    merged = []
    for calls in zip(*collectives_by_rank, strict=True):
        counted = [call["link_sent_bytes"] for call in calls if call["link_sent_bytes"] is not None]
        merged.append(
            {
                "kind": str(_KIND_OF[calls[0]["name"]]),
                "num_ranks": len(calls[0]["ranks"]),
                "num_elements": calls[0]["num_elements"],
                "element_bytes": calls[0]["element_bytes"],
                "link_sent_bytes": sum(counted) if counted else None,
            }
        )
    return merged
