"""Time of collectives: each hop takes its rounds' latency, and the longer of its transfers or the codec's work."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from isthmus.plan.assumptions import CodecSpeeds, Links
from isthmus.plan.placement import Cluster, Operation
from isthmus.plan.volumes import Formula, Hop

_BITS = 8
_GIGA = 1e9
_MICRO = 1e-6
_SOURCE_ELEMENT_BYTES = 4  # speeds of codecs are those of float32


class Resource(StrEnum):
    """A resource that a stage uses: the node's link, links within the node, the codec's two streams."""

    BETWEEN = "between"
    WITHIN = "within"
    ENCODER = "encoder"
    DECODER = "decoder"


def node_hops(operation: Operation, formula: Formula, cluster: Cluster) -> tuple[Hop, ...]:
    """The hops of node 0: the bytes that leave it, and those or elements of its busiest rank. All nodes are alike."""
    by_rank = [formula(operation.on(rank, cluster), rank) for rank in range(cluster.ranks_per_node)]
    return tuple(_of_node(hops) for hops in zip(*by_rank, strict=True))


def _of_node(hops: Sequence[Hop]) -> Hop:
    return replace(
        hops[0],
        inter_bytes=sum(hop.inter_bytes for hop in hops),
        intra_bytes=max(hop.intra_bytes for hop in hops),
        encoded_elements=max(hop.encoded_elements for hop in hops),
        decoded_elements=max(hop.decoded_elements for hop in hops),
    )


@dataclass(frozen=True)
class Stage:
    """A part of a collective in time. A ring over several nodes keeps links of both kinds busy."""

    resources: tuple[Resource, ...]
    seconds: float


def stage_of(hop: Hop, links: Links, codecs: CodecSpeeds) -> Stage:
    """The stage that a hop is."""
    if hop.codec:
        return Stage((Resource.DECODER if hop.decoded_elements else Resource.ENCODER,), _codec_s(hop, codecs))
    between_s = hop.inter_bytes * _BITS / (links.inter_gbit_s * _GIGA)
    within_s = hop.intra_bytes * _BITS / (links.intra_gbit_s * _GIGA)
    if hop.inter_bytes == 0:
        return Stage((Resource.WITHIN,), within_s + hop.steps * links.intra_latency_us * _MICRO)
    resources = (Resource.BETWEEN, Resource.WITHIN) if hop.intra_bytes else (Resource.BETWEEN,)
    return Stage(resources, max(between_s, within_s) + hop.steps * links.inter_latency_us * _MICRO)


def _codec_s(hop: Hop, codecs: CodecSpeeds) -> float:
    speed = codecs.by_codec[hop.codec]
    encode_s = hop.encoded_elements * _SOURCE_ELEMENT_BYTES / (speed.encode_gb_s * _GIGA)
    decode_s = hop.decoded_elements * _SOURCE_ELEMENT_BYTES / (speed.decode_gb_s * _GIGA)
    return encode_s + decode_s
