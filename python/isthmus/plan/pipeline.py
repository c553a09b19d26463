"""A micro-batch in time: stages of collectives, and the passes of FSDP2 over the units, with its prefetching.

docs/plan.md states the model. Every resource serves its work in a fixed order, that of FSDP2's calls, whatever the
durations. So a shorter duration anywhere never makes a step longer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import zip_longest

from isthmus.plan.assumptions import ALL_REDUCES, FORWARD_SHARE, CodecSpeeds, Links
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
    """The hops of node 0: the bytes that leave it, and within it those of its busiest rank. All nodes are alike."""
    by_rank = [formula(operation.on(rank, cluster), rank) for rank in range(cluster.ranks_per_node)]
    return tuple(
        replace(
            hops[0],
            inter_bytes=sum(hop.inter_bytes for hop in hops),
            intra_bytes=max(hop.intra_bytes for hop in hops),
        )
        for hops in zip(*by_rank, strict=True)
    )


@dataclass(frozen=True)
class Stage:
    """A part of a collective in time. A ring over several nodes keeps links of both kinds busy."""

    resources: tuple[Resource, ...]
    seconds: float


def stage_of(hop: Hop, links: Links, codecs: CodecSpeeds) -> Stage:
    """The stage that a hop is."""
    if hop.codec:
        speed = codecs.by_codec[hop.codec]
        encode_s = hop.encoded_elements * _SOURCE_ELEMENT_BYTES / (speed.encode_gb_s * _GIGA)
        decode_s = hop.decoded_elements * _SOURCE_ELEMENT_BYTES / (speed.decode_gb_s * _GIGA)
        return Stage((Resource.DECODER if hop.decoded_elements else Resource.ENCODER,), encode_s + decode_s)
    between_s = hop.inter_bytes * _BITS / (links.inter_gbit_s * _GIGA)
    within_s = hop.intra_bytes * _BITS / (links.intra_gbit_s * _GIGA)
    if hop.inter_bytes == 0:
        return Stage((Resource.WITHIN,), within_s + hop.steps * links.intra_latency_us * _MICRO)
    resources = (Resource.BETWEEN, Resource.WITHIN) if hop.intra_bytes else (Resource.BETWEEN,)
    return Stage(resources, max(between_s, within_s) + hop.steps * links.inter_latency_us * _MICRO)


#: One collective in time; empty: none.
Path = tuple[Stage, ...]


@dataclass(frozen=True)
class UnitWork:
    """What a step does for one unit: its collectives, and its share of the compute."""

    compute_share: float
    is_root: bool = False
    forward_gather: Path = ()
    backward_gather: Path = ()
    reduce_scatter: Path = ()
    all_reduce: Path = ()


class _Clock:
    """When each resource is free again."""

    def __init__(self) -> None:
        self._free_s = dict.fromkeys(Resource, 0.0)

    def run(self, path: Path, ready_s: float) -> float:
        """Run a collective from `ready_s` on, each stage behind its resources' earlier work. Returns when it ends.

        Until it uses a resource again, later collectives have it: an all-reduce crosses twice, and decodes in between.
        """
        used: set[Resource] = set()
        for stage in path:
            start_s = max(ready_s, *(self._free_s[resource] for resource in stage.resources))
            ready_s = start_s + stage.seconds
            for resource in stage.resources:
                begin_s = self._free_s[resource] if resource in used else start_s
                self._free_s[resource] = begin_s + stage.seconds
            used.update(stage.resources)
        return ready_s


def passes_s(
    units: Sequence[UnitWork], input_buffers: int | None, compute_s: float, forward_share: float = FORWARD_SHARE
) -> float:
    """Seconds of one forward and one backward pass over the units of a model, in the order of their gathers.

    input_buffers: FSDP2 bounds memory by beginning a reduction only when fewer reduce-scatters than that have yet to
    end, and its computation waits with it. None: DDP, which does not wait.
    """
    clock = _Clock()
    forward_s = _forward_s(units, clock, compute_s * forward_share)
    return _backward_s(units, clock, input_buffers, forward_s, compute_s * (1 - forward_share))


def _forward_s(units: Sequence[UnitWork], clock: _Clock, compute_s: float) -> float:
    """Each gather runs beside the computation of the two units before; the root computes last (the head).

    A gather does not wait for the end of the one before, only for what that has of its resources.
    """
    computed_s = 0.0
    starts_s = [0.0, 0.0]
    for unit in units:
        gathered_s = clock.run(unit.forward_gather, starts_s[-2])
        starts_s.append(max(gathered_s, computed_s))
        computed_s = starts_s[-1] + (0.0 if unit.is_root else unit.compute_share * compute_s)
    return computed_s + sum(unit.compute_share * compute_s for unit in units if unit.is_root)


def _backward_s(
    units: Sequence[UnitWork], clock: _Clock, input_buffers: int | None, start_s: float, compute_s: float
) -> float:
    """From the last unit to the first, the root's head before them; the root's gradients are reduced last.

    Reductions begin when their input is there, but of all-reduces only two are under way.
    """
    roots = [unit for unit in units if unit.is_root]
    order = roots + [unit for unit in reversed(units) if not unit.is_root]
    scattered_s: list[float] = []
    computed_s = start_s
    ended_s = [start_s] * ALL_REDUCES

    def reduce(unit: UnitWork) -> None:
        nonlocal computed_s
        if input_buffers is not None and len(scattered_s) >= input_buffers:
            computed_s = max(computed_s, scattered_s[-input_buffers])
        scattered_s.append(clock.run(unit.reduce_scatter, computed_s))
        reduced_s = clock.run(unit.all_reduce, max(ended_s[-ALL_REDUCES], scattered_s[-1]))
        ended_s.append(max(ended_s[-1], reduced_s))

    gathered_s = clock.run(order[0].backward_gather, start_s)
    for unit, following in zip_longest(order, order[1:]):
        begun_s = max(gathered_s, computed_s)
        if following is not None:  # prefetched beside the computation of this one
            gathered_s = clock.run(following.backward_gather, begun_s)
        computed_s = begun_s + unit.compute_share * compute_s
        if not unit.is_root:
            reduce(unit)
    for unit in roots:
        reduce(unit)
    return max(computed_s, ended_s[-1])
