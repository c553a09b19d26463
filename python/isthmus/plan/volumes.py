"""Bytes that each collective sends over links: the formulas of docs/algorithms.md, hop by hop.

Counters of real runs are compared with them (`isthmus bench training`), and plans are made of them. They are written
independently of the library, since a check of the library against itself would always pass; only the sizes of packets
are the library's, and a test has these from the document.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from isthmus.base import native
from isthmus.plan.packets import WireOptions, flat_bytes, packet_bytes, piece_bytes, weights_packet_bytes
from isthmus.plan.ranges import check_choice

_SMALLEST_SUM_BYTES = 4  # partial sums travel in float32, or float64


class Kind(StrEnum):
    """The collectives of a training step."""

    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_REDUCE = "all_reduce"


@dataclass(frozen=True)
class Collective:
    """One call.

    num_elements: of the whole tensor, of all ranks together for gather and scatter. ranks: global ones that take part,
    ascending; ranks are placed on nodes in blocks, and equally many of them are on each node that has any.
    """

    kind: Kind
    ranks: Sequence[int]
    num_elements: int
    element_bytes: int
    #: Whether a gather is known to bring what the one before it brought.
    is_repeated: bool = False
    #: The share of a gather's elements that may have changed since the last one that is not repeated.
    trained_share: float = 1.0

    @property
    def chunk_elements(self) -> int:
        """Elements of one rank's part; of an all-reduce, after it was filled up to be divisible."""
        return math.ceil(self.num_elements / len(self.ranks))


@dataclass(frozen=True)
class Hop:
    """A part of a collective on one rank, of which the next waits: messages, or work of the codec.

    steps: rounds of messages, none of which waits for another of the same round. intra_bytes, inter_bytes: sent to
    ranks of this node, and of others. counted: whether transports of Isthmus carry and count them; the world backend
    does not. encoded_elements, decoded_elements: what `codec` works on; one of them is 0.
    """

    steps: int = 0
    intra_bytes: int = 0
    inter_bytes: int = 0
    counted: bool = False
    codec: str = ""
    encoded_elements: int = 0
    decoded_elements: int = 0


#: The hops of a collective on a rank, in order.
Formula = Callable[[Collective, int], tuple[Hop, ...]]


def sent_bytes(hops: Sequence[Hop]) -> tuple[int, int]:
    """Bytes that these hops send to other nodes, and the part of them that transports of Isthmus count."""
    return sum(hop.inter_bytes for hop in hops), sum(hop.inter_bytes for hop in hops if hop.counted)


@lru_cache(maxsize=4096)
def count_nodes(ranks: Sequence[int], ranks_per_node: int) -> int:
    """How many nodes these ranks are on."""
    return len({rank // ranks_per_node for rank in ranks})


@dataclass(frozen=True)
class RingFormula:
    """An ordinary backend: one ring in the order of ranks, which sends (n-1)/n of the tensor along each edge.

    An all-reduce goes round twice, and so does a reduce-scatter of Gloo, which is an all-reduce inside.
    """

    ranks_per_node: int
    reduce_scatter_passes: int

    def __call__(self, collective: Collective, rank: int) -> tuple[Hop, ...]:
        """The ring, on `rank`."""
        others = len(collective.ranks) - 1
        if others == 0 or collective.num_elements == 0:
            return ()
        passes = {Kind.ALL_GATHER: 1, Kind.REDUCE_SCATTER: self.reduce_scatter_passes, Kind.ALL_REDUCE: 2}
        rounds = passes[collective.kind]
        edge_bytes = rounds * collective.num_elements * collective.element_bytes * others // len(collective.ranks)
        return (self.hop(collective.ranks, rank, rounds * others, edge_bytes, counted=False),)

    def hop(self, ranks: Sequence[int], rank: int, steps: int, edge_bytes: int, counted: bool) -> Hop:
        """A ring that sends `edge_bytes` from each rank to the next."""
        following = ranks[(ranks.index(rank) + 1) % len(ranks)]
        if following // self.ranks_per_node != rank // self.ranks_per_node:
            return Hop(steps, inter_bytes=edge_bytes, counted=counted)
        return Hop(steps, intra_bytes=edge_bytes, counted=counted)


#: How often a reduce-scatter of a backend goes round its ring. Several rings over the same ranks send as much in all.
_REDUCE_SCATTER_PASSES = {"nccl": 1, "gloo": 2}


def world_formula(backend: str, ranks_per_node: int) -> RingFormula:
    """The ordinary backend of that name. ValueError names those that are known."""
    check_choice("backend", backend, _REDUCE_SCATTER_PASSES)
    return RingFormula(ranks_per_node, _REDUCE_SCATTER_PASSES[backend])


@dataclass(frozen=True)
class IsthmusFormula:
    """Isthmus. world: the formula of collectives that do not take its paths."""

    options: WireOptions
    world: RingFormula

    def __call__(self, collective: Collective, rank: int) -> tuple[Hop, ...]:
        """The path that Isthmus takes, on `rank`."""
        num_nodes = self.num_nodes(collective)
        if num_nodes == 1 or collective.num_elements == 0:
            return self.world(collective, rank)
        if collective.kind is Kind.ALL_GATHER:
            if not self._is_large(collective):
                return self.world(collective, rank)
            if self.sends_differences(collective):
                return self._gather_weights(collective, num_nodes)
            return _gather(collective, num_nodes, collective.chunk_elements * collective.element_bytes)
        codec = self.codec_of(collective)
        if self.options.is_flat:
            hops = self._reduce_flat(collective, rank, num_nodes, codec)
        else:
            hops = self._reduce_in_two_tiers(collective, num_nodes, codec)
        return hops + self._deliver_result(collective, num_nodes, codec)

    def _gather_weights(self, collective: Collective, num_nodes: int) -> tuple[Hop, ...]:
        chunk, others = collective.chunk_elements, num_nodes - 1
        changed = 0 if collective.is_repeated else self.changed_bytes(collective)
        compared = Hop(codec="delta" if changed else "none", encoded_elements=chunk)
        headers = Hop(others, inter_bytes=others * native.load().WEIGHT_HEADER_BYTES, counted=True)
        packets = Hop(others, inter_bytes=others * changed, counted=True)
        decoded = Hop(codec="delta", decoded_elements=others * chunk)
        _, *within = _gather(collective, num_nodes, chunk * collective.element_bytes)
        return (compared, headers, *((packets, decoded) if changed else ()), *within)

    def changed_bytes(self, collective: Collective) -> int:
        """What a rank sends to each other node of weights that have changed."""
        chunk, share = collective.chunk_elements, collective.trained_share
        return weights_packet_bytes(chunk * share, collective.element_bytes, self.options)

    def _is_large(self, collective: Collective) -> bool:
        return collective.num_elements >= self.options.min_elements

    def num_nodes(self, collective: Collective) -> int:
        """How many nodes its ranks are on."""
        return count_nodes(collective.ranks, self.world.ranks_per_node)

    def codec_of(self, collective: Collective) -> str:
        """The codec of a reduction over several nodes."""
        exact_all_reduce = self.options.is_flat and collective.kind is Kind.ALL_REDUCE
        return self.options.codec if self._is_large(collective) and not exact_all_reduce else "none"

    def sends_differences(self, collective: Collective) -> bool:
        """Whether a gather sends what changed alone."""
        is_gather = collective.kind is Kind.ALL_GATHER and self.num_nodes(collective) > 1
        return is_gather and self.options.sends_differences and self._is_large(collective)

    def _reduce_in_two_tiers(self, collective: Collective, num_nodes: int, codec: str) -> tuple[Hop, ...]:
        local = len(collective.ranks) // num_nodes
        chunk, others = collective.chunk_elements, num_nodes - 1
        within = Hop(1, intra_bytes=num_nodes * (local - 1) * chunk * collective.element_bytes, counted=True)
        piece = piece_bytes(chunk, collective.element_bytes, codec, self.options)
        return (
            *((within,) if local > 1 else ()),
            Hop(codec=codec, encoded_elements=others * chunk),
            Hop(others, inter_bytes=others * piece, counted=True),
            Hop(codec=codec, decoded_elements=others * chunk),
        )

    def _reduce_flat(self, collective: Collective, rank: int, num_nodes: int, codec: str) -> tuple[Hop, ...]:
        """A ring over all ranks, or with one rank a node straight to the owners."""
        ranks, chunk = collective.ranks, collective.chunk_elements
        others, one_a_node = len(ranks) - 1, num_nodes == len(ranks)
        if codec == "none":
            if one_a_node:
                return (Hop(others, inter_bytes=others * chunk * collective.element_bytes, counted=True),)
            sum_bytes = chunk * max(collective.element_bytes, _SMALLEST_SUM_BYTES)
            return (self.world.hop(ranks, rank, others, others * sum_bytes, counted=True),)
        index_bytes, sketch_bytes = flat_bytes(chunk, self.options)
        return (
            Hop(codec=codec, encoded_elements=len(ranks) * chunk),
            self.world.hop(ranks, rank, 2 * others, 2 * others * index_bytes, counted=True),
            self.world.hop(ranks, rank, others, others * sketch_bytes, counted=True),
            Hop(codec=codec, decoded_elements=chunk),
        )

    def _deliver_result(self, collective: Collective, num_nodes: int, codec: str) -> tuple[Hop, ...]:
        """The second half of an all-reduce: the owner's result is encoded, gathered, and decoded by all."""
        if collective.kind is not Kind.ALL_REDUCE:
            return ()
        chunk = collective.chunk_elements
        return (
            Hop(codec=codec, encoded_elements=chunk),
            *_gather(collective, num_nodes, packet_bytes(chunk, collective.element_bytes, codec, self.options)),
            Hop(codec=codec, decoded_elements=len(collective.ranks) * chunk),
        )


def _gather(collective: Collective, num_nodes: int, part_bytes: int) -> tuple[Hop, ...]:
    """Along the rail, then within the node: `part_bytes` of each rank."""
    local = len(collective.ranks) // num_nodes
    along = Hop(num_nodes - 1, inter_bytes=(num_nodes - 1) * part_bytes, counted=True)
    within = Hop(1, intra_bytes=num_nodes * (local - 1) * part_bytes, counted=True)
    return (along, within) if local > 1 else (along,)
