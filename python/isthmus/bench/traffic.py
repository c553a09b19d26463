"""What each collective should put on the links between nodes: the formulas that counters are held against."""

from collections.abc import Callable, Sequence
from typing import Any

from isthmus.bench.recorder import PHASE_OF

#: Bytes that one rank sends to other nodes for one collective (`Collective.as_json`).
Formula = Callable[[dict[str, Any], int], int]


def gloo_formula(ranks_per_node: int) -> Formula:
    """The formula for plain Gloo: rings in the order of ranks, placed on nodes in blocks.

    A ring sends along each of its edges (n-1)/n of the tensor for an all-gather, and twice that for an all-reduce. Its
    reduce-scatter is an all-reduce inside.
    """

    def sent_bytes(collective: dict[str, Any], rank: int) -> int:
        ranks = collective["ranks"]
        following = ranks[(ranks.index(rank) + 1) % len(ranks)]
        if following // ranks_per_node == rank // ranks_per_node:
            return 0
        passes = 1 if PHASE_OF[collective["name"]] == "all_gather" else 2
        tensor_bytes = collective["num_elements"] * collective["element_bytes"]
        return int(passes * tensor_bytes * (len(ranks) - 1) // len(ranks))

    return sent_bytes


def formula_bytes(collectives_by_rank: Sequence[Sequence[dict[str, Any]]], formula: Formula) -> dict[str, int]:
    """Bytes between nodes of one step, summed over ranks, by phase."""
    total = {"all_gather": 0, "reduce_scatter": 0}
    for rank, collectives in enumerate(collectives_by_rank):
        for collective in collectives:
            total[PHASE_OF[collective["name"]]] += formula(collective, rank)
    return total


def audited_link_bytes(collectives_by_rank: Sequence[Sequence[dict[str, Any]]]) -> dict[str, int]:
    """Bytes that the links sent in one audited step, summed over nodes, by phase."""
    total = {"all_gather": 0, "reduce_scatter": 0}
    for collectives in collectives_by_rank:
        for collective in collectives:
            total[PHASE_OF[collective["name"]]] += collective["link_sent_bytes"] or 0
    return total
