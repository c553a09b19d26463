"""What each collective should put on the links between nodes: the formulas that counters are held against.

They are written down a second time here, from docs/algorithms.md and docs/packet_format.md, not asked of the library:
a check against itself would always pass.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from isthmus.bench.phases import COMMUNICATION_PHASES, PHASE_OF

_HEADER_BYTES = 48
_SECTION_BYTES = 64
_TAGC_CELL_BYTES = 4
_TAGC_LONGEST_BLOCK = 1024
_TAGC_SHORTEST_BLOCK = 64
_TAGC_WANTED_ROWS = 96


class Sent(NamedTuple):
    """Bytes that one rank sends to other nodes for one collective."""

    num_bytes: int
    #: Whether transports of Isthmus carry and count them. The world backend does not.
    counted: bool


#: Sent bytes of one collective (`Collective.as_json`) by a rank.
Formula = Callable[[dict[str, Any], int], Sent]


@dataclass(frozen=True)
class GlooFormula:
    """Plain Gloo: rings in the order of ranks, placed on nodes in blocks.

    A ring sends along each of its edges (n-1)/n of the tensor for an all-gather, and twice that for an all-reduce. Its
    reduce-scatter is an all-reduce inside.
    """

    ranks_per_node: int

    def __call__(self, collective: dict[str, Any], rank: int) -> Sent:
        """Bytes along the edge from `rank` to the next, if that crosses between nodes."""
        ranks = collective["ranks"]
        if not self._leaves_node(rank, ranks):
            return Sent(0, counted=False)
        passes = 1 if PHASE_OF[collective["name"]] == "all_gather" else 2
        tensor_bytes = collective["num_elements"] * collective["element_bytes"]
        return Sent(passes * tensor_bytes * (len(ranks) - 1) // len(ranks), counted=False)

    def _leaves_node(self, rank: int, ranks: Sequence[int]) -> bool:
        following = ranks[(ranks.index(rank) + 1) % len(ranks)]
        return following // self.ranks_per_node != rank // self.ranks_per_node


@dataclass(frozen=True)
class IsthmusFormula:
    """Isthmus, with ranks placed on nodes in blocks, in groups that have equally many ranks on each of their nodes.

    options: values of `isthmus.Options` by name; `units` must be "*".
    """

    options: dict[str, Any]
    ranks_per_node: int

    def __call__(self, collective: dict[str, Any], rank: int) -> Sent:
        """Bytes that `rank` hands to transports for other nodes, or to the world backend."""
        ranks = collective["ranks"]
        other_nodes = len({member // self.ranks_per_node for member in ranks}) - 1
        if other_nodes == 0:
            return Sent(0, counted=False)
        if collective["name"] == "all_gather_into_tensor":
            return self._all_gather(collective, rank, other_nodes)
        is_all_reduce = collective["name"] == "all_reduce"
        flat = self.options["tiers"] == "flat"
        compressed = self._is_large(collective) and self.options["codec"] == "tagc" and not (flat and is_all_reduce)
        chunk_elements = math.ceil(collective["num_elements"] / len(ranks))
        if flat and not is_all_reduce:
            return self._flat(chunk_elements, collective["element_bytes"], compressed, rank, len(ranks))
        # An all-reduce sends pieces to the other owners, then its own result to the other nodes, in equal packets.
        num_packets = other_nodes * (2 if is_all_reduce else 1)
        return Sent(num_packets * self._packet(chunk_elements, collective["element_bytes"], compressed), counted=True)

    def _is_large(self, collective: dict[str, Any]) -> bool:
        return bool(collective["num_elements"] >= self.options["min_elements"])

    def _all_gather(self, collective: dict[str, Any], rank: int, other_nodes: int) -> Sent:
        if not (self._is_large(collective) and self.options["two_tier_all_gather"]):
            return GlooFormula(self.ranks_per_node)(collective, rank)
        shard_elements = collective["num_elements"] // len(collective["ranks"])
        return Sent(other_nodes * shard_elements * collective["element_bytes"], counted=True)

    def _packet(self, num_elements: int, element_bytes: int, compressed: bool) -> int:
        return self._tagc_packet(num_elements) if compressed else _plain_packet(num_elements, element_bytes)

    def _flat(self, shard_elements: int, element_bytes: int, compressed: bool, rank: int, num_ranks: int) -> Sent:
        """A ring over all ranks, of which the last of each node sends to the next node."""
        if rank % self.ranks_per_node != self.ranks_per_node - 1:
            return Sent(0, counted=True)
        if compressed:
            shape = self._tagc_shape(shard_elements)
            index_bytes = shape.num_blocks * shape.block_elements // 8 * self.options["index_bits"]
            part_bytes = 2 * index_bytes + shape.num_rows * shape.block_elements * _TAGC_CELL_BYTES
        else:
            part_bytes = shard_elements * max(element_bytes, 4)  # partial sums travel in float32, or float64
        return Sent((num_ranks - 1) * part_bytes, counted=True)

    def _tagc_packet(self, num_elements: int) -> int:
        shape = self._tagc_shape(num_elements)
        flags = math.ceil(shape.num_blocks / 64) * 8
        index = shape.num_blocks * shape.block_elements // 8
        sketch = shape.num_rows * shape.block_elements * _TAGC_CELL_BYTES
        return sum(_round_up(part, _SECTION_BYTES) for part in (_HEADER_BYTES, flags, index)) + sketch

    def _tagc_shape(self, num_elements: int) -> "_TagcShape":
        fixed = self.options["block_elements"]
        block = fixed or _TAGC_LONGEST_BLOCK
        shape = _TagcShape.of(num_elements, block, self.options["ratio"])
        while not fixed and shape.num_rows < _TAGC_WANTED_ROWS and block > _TAGC_SHORTEST_BLOCK:
            block //= 2
            shape = _TagcShape.of(num_elements, block, self.options["ratio"])
        return shape


class _TagcShape(NamedTuple):
    num_blocks: int
    block_elements: int
    num_rows: int

    @classmethod
    def of(cls, num_elements: int, block_elements: int, ratio: float) -> "_TagcShape":
        num_blocks = math.ceil(num_elements / block_elements)
        return cls(num_blocks, block_elements, max(3, math.ceil(num_blocks / ratio)))


def _plain_packet(num_elements: int, element_bytes: int) -> int:
    return _HEADER_BYTES + _round_up(num_elements * element_bytes, 8)


def _round_up(num_bytes: int, multiple: int) -> int:
    return math.ceil(num_bytes / multiple) * multiple


def formula_bytes(
    collectives_by_rank: Sequence[Sequence[dict[str, Any]]], formula: Formula, counted_only: bool = False
) -> dict[str, int]:
    """Bytes between nodes of one step, summed over ranks, by phase; only those that transports count, if so asked."""
    total = dict.fromkeys(COMMUNICATION_PHASES, 0)
    for rank, collectives in enumerate(collectives_by_rank):
        for collective in collectives:
            sent = formula(collective, rank)
            if sent.counted or not counted_only:
                total[PHASE_OF[collective["name"]]] += sent.num_bytes
    return total


def audited_link_bytes(collectives_by_rank: Sequence[Sequence[dict[str, Any]]]) -> dict[str, int]:
    """Bytes that the links sent in one audited step, summed over nodes, by phase."""
    total = dict.fromkeys(COMMUNICATION_PHASES, 0)
    for collectives in collectives_by_rank:
        for collective in collectives:
            total[PHASE_OF[collective["name"]]] += collective["link_sent_bytes"] or 0
    return total
