"""The prediction itself: a model, a strategy and a cluster become bytes, memory, and for given links seconds."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from isthmus.plan.assumptions import INPUT_BUFFERS, CodecSpeeds, Compute, Links
from isthmus.plan.memory import Memory, memory_of
from isthmus.plan.pipeline import Path, Pipeline, UnitWork, node_hops, stage_of
from isthmus.plan.placement import (
    Cluster,
    ElementBytes,
    MicroBatches,
    Operation,
    Phase,
    Placement,
    micro_batches_of,
    operations_of,
)
from isthmus.plan.ranges import check_range
from isthmus.plan.strategies import Strategy
from isthmus.plan.units import Model, Shapes
from isthmus.plan.volumes import Hop, Kind, RingFormula

#: The shapes of a unit's parameters, of those that are trained, and whether it is the root: units that have them in
#: common make the same collectives.
UnitShape = tuple[Shapes, Shapes, bool]
#: An operation with the hops that a node makes for it, or with the path that they are in time.
Hops = tuple[Operation, tuple[Hop, ...]]
Timed = tuple[Operation, Path]
MOST_MICRO_BATCHES = 4096


@dataclass(frozen=True)
class Setting:
    """The common setting of all strategies of a comparison."""

    model: Model
    cluster: Cluster
    world: RingFormula
    element_bytes: ElementBytes = field(default_factory=ElementBytes)
    #: Parts of a rank's tokens in a step. Gradients add up over them.
    micro_batches: int = 1

    def __post_init__(self) -> None:
        check_range("micro_batches", self.micro_batches, 1, MOST_MICRO_BATCHES)


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step. phases: of each, if nothing ran beside it. serial_s: one operation at a time. step_s: as
    FSDP2 overlaps them.
    """

    compute_s: float
    phases: dict[Phase, float]
    serial_s: float
    step_s: float


@dataclass(frozen=True)
class StepPlan:
    """A strategy's step. Bytes and memory depend on placement alone; `time` asks for links as well."""

    setting: Setting
    strategy: Strategy

    @cached_property
    def _order(self) -> list[UnitShape]:
        return [(unit.shapes, unit.trained_shapes, unit.is_root) for unit in self.setting.model.units]

    @cached_property
    def _counts(self) -> Counter[UnitShape]:
        return Counter(self._order)

    @cached_property
    def _batches(self) -> tuple[MicroBatches, ...]:
        return micro_batches_of(self.setting.micro_batches)

    @cached_property
    def _hops(self) -> dict[MicroBatches, dict[UnitShape, tuple[Hops, ...]]]:
        """The hops of units by their shape, in each micro-batch: most of a model's units are alike."""
        setting = self.setting
        formula, cluster = self.strategy.formula(setting.world), setting.cluster
        units = dict(zip(self._order, setting.model.units, strict=True))
        operations = {
            shape: operations_of(unit, self.strategy.placements_of(unit), cluster, setting.element_bytes)
            for shape, unit in units.items()
        }
        return {
            batch: {
                shape: tuple(
                    (operation, node_hops(operation, formula, cluster))
                    for operation in batch.operations(found, self.strategy.deferred)
                )
                for shape, found in operations.items()
            }
            for batch in self._batches
        }

    @cached_property
    def operations(self) -> list[Operation]:
        """All collectives of a step, by micro-batch and unit."""
        return [
            operation
            for batch in self._batches
            for _ in range(batch.count)
            for shape in self._order
            for operation, _ in self._hops[batch][shape]
        ]

    @cached_property
    def node_bytes(self) -> dict[Phase, int]:
        """Bytes that leave each node in one step, by phase."""
        total = dict.fromkeys(Phase, 0)
        for batch in self._batches:
            for shape, count in self._counts.items():
                for operation, hops in self._hops[batch][shape]:
                    total[operation.phase] += sum(hop.inter_bytes for hop in hops) * count * batch.count
        return total

    @cached_property
    def memory(self) -> Memory:
        """The memory of one rank."""
        setting = self.setting
        placed = [(unit, self.strategy.placements_of(unit)) for unit in setting.model.units]
        formula = self.strategy.formula(setting.world)
        return memory_of(placed, formula, setting.cluster, setting.element_bytes, self.strategy.defers)

    def time(self, links: Links, codecs: CodecSpeeds, compute: Compute) -> StepTime:
        """Seconds of a step over these links. Each micro-batch waits for the reductions of the one before."""
        phases, step_s = dict.fromkeys(Phase, 0.0), 0.0
        fsdp = self.strategy.placements.parameters is not Placement.REPLICATED
        for batch in self._batches:
            works = {}
            for shape, found in self._hops[batch].items():
                timed = [(op, tuple(stage_of(hop, links, codecs) for hop in hops)) for op, hops in found]
                for operation, path in timed:
                    seconds = self._counts[shape] * sum(stage.seconds for stage in path)
                    phases[operation.phase] += batch.count * seconds
                works[shape] = self._work(shape, timed)
            pipeline = Pipeline([works[shape] for shape in self._order], INPUT_BUFFERS if fsdp else None)
            compute_s = compute.seconds / self.setting.micro_batches
            step_s += batch.count * pipeline.step_s(compute_s, compute.forward_share)
        return StepTime(
            compute_s=compute.seconds,
            phases=phases,
            serial_s=compute.seconds + sum(phases.values()),
            step_s=step_s,
        )

    def _work(self, shape: UnitShape, operations: Sequence[Timed]) -> UnitWork:
        shapes, _, is_root = shape

        def chosen(phase: Phase, kind: Kind) -> tuple[Path, ...]:
            return tuple(path for op, path in operations if op.phase is phase and op.kind is kind)

        return UnitWork(
            forward_gathers=chosen(Phase.FORWARD, Kind.ALL_GATHER),
            backward_gathers=chosen(Phase.BACKWARD, Kind.ALL_GATHER),
            reduce_scatters=chosen(Phase.REDUCTION, Kind.REDUCE_SCATTER),
            all_reduces=chosen(Phase.REDUCTION, Kind.ALL_REDUCE),
            compute_share=sum(map(math.prod, shapes)) / self.setting.model.num_parameters,
            is_root=is_root,
        )
