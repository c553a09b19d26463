"""The prediction itself: a model, a strategy and a cluster become bytes, memory, and for given links seconds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from isthmus.plan.assumptions import Accumulation, CodecSpeeds, Compute, Links
from isthmus.plan.memory import Memory, memory_of
from isthmus.plan.pipeline import Path, Pipeline, UnitWork, serial_s
from isthmus.plan.placement import Cluster, ElementBytes, Operation, Phase, Placement, operations_of
from isthmus.plan.strategies import RESHARDINGS, Strategy
from isthmus.plan.timing import NodeHop, Resource, node_hops, stage_of
from isthmus.plan.units import Model, Unit
from isthmus.plan.volumes import Kind, RingFormula

#: An operation and the hops that a node makes for it.
Hops = tuple[Operation, tuple[NodeHop, ...]]


@dataclass(frozen=True)
class Setting:
    """What all strategies of a comparison share. resharding: one of `strategies.RESHARDINGS`."""

    model: Model
    cluster: Cluster
    world: RingFormula
    element_bytes: ElementBytes = field(default_factory=ElementBytes)
    resharding: str = "yes"
    accumulation: Accumulation = field(default_factory=Accumulation)

    def __post_init__(self) -> None:
        if self.resharding not in RESHARDINGS:
            raise ValueError(f"reshard '{self.resharding}': expected one of {', '.join(RESHARDINGS)}")


@dataclass(frozen=True)
class PhaseTime:
    """Seconds of a phase in one step, if nothing runs beside it: on links, in the codec, and for rounds of messages."""

    between_s: float
    within_s: float
    codec_s: float
    latency_s: float

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.between_s + self.within_s + self.codec_s + self.latency_s


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step. serial_s: nothing at the same time as anything else. step_s: as FSDP2 overlaps it."""

    compute_s: float
    phases: dict[Phase, PhaseTime]
    serial_s: float
    step_s: float

    @property
    def exposed_s(self) -> float:
        """What communication adds to computation, overlap and all."""
        return self.step_s - self.compute_s


@dataclass(frozen=True)
class StepPlan:
    """A strategy's step. Bytes and memory depend on placement alone; `time` asks for links as well."""

    setting: Setting
    strategy: Strategy

    @cached_property
    def _hops_by_unit(self) -> list[tuple[Unit, tuple[Hops, ...]]]:
        setting = self.setting
        formula = self.strategy.formula(setting.world)
        known: dict[Operation, tuple[NodeHop, ...]] = {}
        found = []
        for unit in setting.model.units:
            placements = self.strategy.placements_of(unit, setting.resharding)
            operations = operations_of(unit, placements, setting.cluster, setting.element_bytes)
            for operation in operations:
                if operation not in known:
                    known[operation] = node_hops(operation, formula, setting.cluster)
            found.append((unit, tuple((operation, known[operation]) for operation in operations)))
        return found

    @cached_property
    def operations(self) -> list[Operation]:
        """All collectives of one pass, unit by unit."""
        return [operation for _, found in self._hops_by_unit for operation, _ in found]

    def times_a_step(self, phase: Phase) -> int:
        """How often the collectives of a phase are made in a step."""
        accumulation = self.setting.accumulation
        if phase is Phase.AFTER_STEP:
            return 1
        return accumulation.num_reductions if phase is Phase.REDUCTION else accumulation.passes

    @cached_property
    def node_bytes(self) -> dict[Phase, int]:
        """Bytes that leave each node in one step, by phase."""
        total = dict.fromkeys(Phase, 0)
        for _, hops_of_unit in self._hops_by_unit:
            for operation, hops in hops_of_unit:
                sent = sum(hop.inter_bytes for hop in hops)
                total[operation.phase] += sent * self.times_a_step(operation.phase)
        return total

    @cached_property
    def memory(self) -> Memory:
        """Of one rank."""
        setting = self.setting
        placed = [(unit, self.strategy.placements_of(unit, setting.resharding)) for unit in setting.model.units]
        wire, accumulation = self.strategy.wire, setting.accumulation
        return memory_of(placed, wire, setting.cluster, setting.element_bytes, accumulation)

    def time(self, links: Links, codecs: CodecSpeeds, compute: Compute) -> StepTime:
        """Seconds of a step over these links."""
        paths: dict[tuple[NodeHop, ...], Path] = {}

        def path_of(hops: tuple[NodeHop, ...]) -> Path:
            if hops not in paths:
                paths[hops] = tuple(stage_of(hop, links, codecs) for hop in hops)
            return paths[hops]

        by_unit = [(unit, [(op, path_of(hops)) for op, hops in found]) for unit, found in self._hops_by_unit]
        phases = {phase: self._phase_time(phase, by_unit) for phase in Phase}
        accumulation = self.setting.accumulation
        units = [self._work(unit, operations) for unit, operations in by_unit]
        pipeline = Pipeline(units, self.strategy.placements.parameters is not Placement.REPLICATED)
        return StepTime(
            compute_s=compute.seconds,
            phases=phases,
            serial_s=compute.seconds + sum(time.seconds for time in phases.values()),
            step_s=pipeline.step_s(compute.seconds, accumulation.passes, accumulation.num_reductions),
        )

    def _work(self, unit: Unit, operations: Sequence[tuple[Operation, Path]]) -> UnitWork:
        def chosen(phase: Phase, *kinds: Kind) -> tuple[Path, ...]:
            return tuple(path for op, path in operations if op.phase is phase and op.kind in kinds)

        return UnitWork(
            forward_gathers=chosen(Phase.FORWARD, Kind.ALL_GATHER),
            backward_gathers=chosen(Phase.BACKWARD, Kind.ALL_GATHER),
            reduce_scatters=chosen(Phase.REDUCTION, Kind.REDUCE_SCATTER),
            all_reduces=chosen(Phase.REDUCTION, Kind.ALL_REDUCE),
            updates=chosen(Phase.AFTER_STEP, Kind.ALL_GATHER),
            compute_share=unit.num_parameters / self.setting.model.num_parameters,
            is_root=unit.is_root,
        )

    def _phase_time(self, phase: Phase, by_unit: Iterable[tuple[Unit, list[tuple[Operation, Path]]]]) -> PhaseTime:
        paths = [path for _, operations in by_unit for op, path in operations if op.phase is phase]
        times = self.times_a_step(phase)

        def transfer_s(resource: Resource) -> float:
            stages = (stage for path in paths for stage in path if stage.resources[0] is resource)
            return times * sum(stage.transfer_s for stage in stages)

        latency_s = times * (serial_s(paths) - sum(stage.transfer_s for path in paths for stage in path))
        return PhaseTime(
            transfer_s(Resource.BETWEEN), transfer_s(Resource.WITHIN), transfer_s(Resource.CODEC), latency_s
        )
