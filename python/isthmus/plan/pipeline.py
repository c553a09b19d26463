"""A step in time: stages of collectives, and the passes of FSDP2 over the units, with its prefetching.

docs/plan.md states the model. Every resource serves its work in a fixed order, that of FSDP2's calls, whatever the
durations. So a shorter duration anywhere never makes a step longer.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from isthmus.plan.assumptions import FORWARD_SHARE, CodecSpeeds, Links
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


#: One collective in time.
Path = tuple[Stage, ...]


@dataclass(frozen=True)
class UnitWork:
    """What a step does for one unit: its collectives, and its share of the compute."""

    forward_gathers: tuple[Path, ...]
    backward_gathers: tuple[Path, ...]
    reduce_scatters: tuple[Path, ...]
    all_reduces: tuple[Path, ...]
    compute_share: float
    is_root: bool


@dataclass
class _Clock:
    """When each resource is free again."""

    free_s: dict[Resource, float] = field(default_factory=lambda: dict.fromkeys(Resource, 0.0))

    def run(self, paths: Iterable[Path], ready_s: float) -> float:
        """Run collectives one after the other from `ready_s` on, each stage behind its resources' earlier work."""
        for path in paths:
            for stage in path:
                start_s = max(ready_s, *(self.free_s[resource] for resource in stage.resources))
                ready_s = start_s + stage.seconds
                self.free_s.update(dict.fromkeys(stage.resources, ready_s))
        return ready_s


@dataclass(frozen=True)
class Pipeline:
    """The units of a model in the order of their gathers, the root first.

    input_buffers: FSDP2 bounds memory by beginning a reduction only when fewer reduce-scatters than that have yet to
    end, and its computation waits with it. None: DDP, which does not wait.
    """

    units: Sequence[UnitWork]
    input_buffers: int | None

    def step_s(self, compute_s: float, forward_share: float = FORWARD_SHARE) -> float:
        """Seconds of one forward and one backward pass."""
        clock = _Clock()
        forward_s = self._forward(clock, compute_s * forward_share)
        return self._backward(clock, forward_s, compute_s * (1 - forward_share))

    def _forward(self, clock: _Clock, compute_s: float) -> float:
        """Each gather runs beside the computation of the two units before; the root computes last (the head).

        A gather does not wait for the end of the one before, only for what that has of its resources.
        """
        gathered_s = computed_s = 0.0
        starts_s = [0.0, 0.0]
        for unit in self.units:
            gathered_s = clock.run(unit.forward_gathers, starts_s[-2])
            starts_s.append(max(gathered_s, computed_s))
            computed_s = starts_s[-1] + (0.0 if unit.is_root else unit.compute_share * compute_s)
        return computed_s + sum(unit.compute_share * compute_s for unit in self.units if unit.is_root)

    def _backward(self, clock: _Clock, start_s: float, compute_s: float) -> float:
        """From the last unit to the first, the root's head before them; the root's gradients are reduced last."""
        roots = [unit for unit in self.units if unit.is_root]
        others = [unit for unit in reversed(self.units) if not unit.is_root]
        order = roots + others
        reductions = _Reductions(clock, self.input_buffers, start_s)
        computed_s = start_s
        gathered_s = clock.run(order[0].backward_gathers, start_s)
        for unit, following in zip(order, [*order[1:], None], strict=True):
            begun_s = max(gathered_s, computed_s)
            if following is not None:  # prefetched beside the computation of this one
                gathered_s = clock.run(following.backward_gathers, max(gathered_s, begun_s))
            computed_s = begun_s + unit.compute_share * compute_s
            if not unit.is_root:
                computed_s = reductions.begin(unit, computed_s)
        for unit in roots:
            computed_s = reductions.begin(unit, computed_s)
        return max(computed_s, reductions.ended_s)


@dataclass
class _Reductions:
    """The reductions of a backward pass: when each reduce-scatter has ended, and when everything has."""

    clock: _Clock
    input_buffers: int | None
    ended_s: float
    scattered_s: list[float] = field(default_factory=list)

    def begin(self, unit: UnitWork, computed_s: float) -> float:
        """Reduce a unit whose gradients are there at `computed_s`; returns when computation can go on.

        FSDP2 calls an all-reduce behind the result of the one before. Reduce-scatters begin when their input is there.
        """
        ready_s = computed_s
        if self.input_buffers is not None and len(self.scattered_s) >= self.input_buffers:
            ready_s = max(computed_s, self.scattered_s[-self.input_buffers])
        self.scattered_s.append(self.clock.run(unit.reduce_scatters, ready_s))
        self.ended_s = self.clock.run(unit.all_reduces, max(self.ended_s, self.scattered_s[-1]))
        return ready_s
