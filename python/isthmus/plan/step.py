"""The prediction itself: a model, a strategy and a cluster become bytes, memory, and for given links seconds."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from isthmus.plan.assumptions import INPUT_BUFFERS, CodecSpeeds, Compute, Links
from isthmus.plan.memory import Memory, memory_of
from isthmus.plan.pipeline import Path, Pipeline, UnitWork, node_hops, stage_of
from isthmus.plan.placement import Cluster, ElementBytes, Operation, Phase, Placement, operations_of
from isthmus.plan.strategies import Strategy
from isthmus.plan.units import Model
from isthmus.plan.volumes import Hop, Kind, RingFormula

#: The shapes of a unit's parameters, and whether it is the root: units of one shape make the same collectives.
UnitShape = tuple[tuple[tuple[int, ...], ...], bool]
#: An operation with the hops that a node makes for it, or with the path that they are in time.
Hops = tuple[Operation, tuple[Hop, ...]]
Timed = tuple[Operation, Path]


@dataclass(frozen=True)
class Setting:
    """The common setting of all strategies of a comparison."""

    model: Model
    cluster: Cluster
    world: RingFormula
    element_bytes: ElementBytes = field(default_factory=ElementBytes)


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
        return [(unit.shapes, unit.is_root) for unit in self.setting.model.units]

    @cached_property
    def _counts(self) -> Counter[UnitShape]:
        return Counter(self._order)

    @cached_property
    def _hops(self) -> dict[UnitShape, tuple[Hops, ...]]:
        """The hops of units by their shape: most of a model's units are alike."""
        setting = self.setting
        formula, cluster = self.strategy.formula(setting.world), setting.cluster
        units = dict(zip(self._order, setting.model.units, strict=True))
        return {
            shape: tuple(
                (operation, node_hops(operation, formula, cluster))
                for operation in operations_of(unit, self.strategy.placements_of(unit), cluster, setting.element_bytes)
            )
            for shape, unit in units.items()
        }

    @cached_property
    def operations(self) -> list[Operation]:
        """All collectives of a step, unit by unit."""
        return [operation for shape in self._order for operation, _ in self._hops[shape]]

    @cached_property
    def node_bytes(self) -> dict[Phase, int]:
        """Bytes that leave each node in one step, by phase."""
        total = dict.fromkeys(Phase, 0)
        for shape, count in self._counts.items():
            for operation, hops in self._hops[shape]:
                total[operation.phase] += sum(hop.inter_bytes for hop in hops) * count
        return total

    @cached_property
    def memory(self) -> Memory:
        """The memory of one rank."""
        setting = self.setting
        placed = [(unit, self.strategy.placements_of(unit)) for unit in setting.model.units]
        formula = self.strategy.formula(setting.world)
        return memory_of(placed, formula, setting.cluster, setting.element_bytes)

    def time(self, links: Links, codecs: CodecSpeeds, compute: Compute) -> StepTime:
        """Seconds of a step over these links."""

        paths = {
            shape: [(operation, tuple(stage_of(hop, links, codecs) for hop in hops)) for operation, hops in found]
            for shape, found in self._hops.items()
        }
        phases = dict.fromkeys(Phase, 0.0)
        for shape, timed in paths.items():
            for operation, path in timed:
                phases[operation.phase] += self._counts[shape] * sum(stage.seconds for stage in path)
        works = {shape: self._work(shape, timed) for shape, timed in paths.items()}
        fsdp = self.strategy.placements.parameters is not Placement.REPLICATED
        pipeline = Pipeline([works[shape] for shape in self._order], INPUT_BUFFERS if fsdp else None)
        return StepTime(
            compute_s=compute.seconds,
            phases=phases,
            serial_s=compute.seconds + sum(phases.values()),
            step_s=pipeline.step_s(compute.seconds),
        )

    def _work(self, shape: UnitShape, operations: Sequence[Timed]) -> UnitWork:
        shapes, is_root = shape

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
