"""The prediction itself: a model, a strategy and a cluster become bytes, memory, and for given links seconds."""

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain

from isthmus.plan.assumptions import INPUT_BUFFERS, CodecSpeeds, Compute, Links
from isthmus.plan.memory import Memory, memory_of
from isthmus.plan.pipeline import UnitWork, node_hops, passes_s, stage_of
from isthmus.plan.placement import Cluster, ElementBytes, Operation, Phase, Scope, operations_of
from isthmus.plan.ranges import check_choice, check_range
from isthmus.plan.strategies import Strategy
from isthmus.plan.units import Model, Unit
from isthmus.plan.volumes import Hop, Kind, RingFormula

MOST_MICRO_BATCHES = 4096
#: The collectives of a unit.
Operations = tuple[Operation, ...]
#: Which part of `UnitWork` a collective is.
_PART_OF_WORK = {
    (Phase.FORWARD, Kind.ALL_GATHER): "forward_gather",
    (Phase.BACKWARD, Kind.ALL_GATHER): "backward_gather",
    (Phase.REDUCTION, Kind.REDUCE_SCATTER): "reduce_scatter",
    (Phase.REDUCTION, Kind.ALL_REDUCE): "all_reduce",
}


@dataclass(frozen=True)
class Setting:
    """The common setting of all strategies of a comparison."""

    model: Model
    cluster: Cluster
    world: RingFormula
    element_bytes: ElementBytes = field(default_factory=ElementBytes)
    #: Parts of a rank's tokens in a step. Gradients add up over them.
    micro_batches: int = 1
    #: Decides how many bits codec quant has, and nothing else.
    optimizer: str = "adamw"

    def __post_init__(self) -> None:
        check_range("micro_batches", self.micro_batches, 1, MOST_MICRO_BATCHES)
        check_choice("optimizer", self.optimizer, ("adamw", "muon"))


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
    def _once(self) -> list[Operations]:
        """By unit, the collectives of a step with one micro-batch."""
        cluster, element_bytes = self.setting.cluster, self.setting.element_bytes
        return [
            operations_of(unit, self.strategy.placements_of(unit), cluster, element_bytes)
            for unit in self.setting.model.units
        ]

    @cached_property
    def _batches(self) -> list[tuple[int, list[Operations]]]:
        """How many micro-batches of a step make the same collectives, and by unit which.

        Weights do not change within a step, so gathers repeat the first micro-batch's.
        """

        def repeating(each: Operation) -> Operation:
            is_gather = each.call.kind is Kind.ALL_GATHER
            return replace(each, call=replace(each.call, is_repeated=True)) if is_gather else each

        def without_deferred(units: list[Operations]) -> list[Operations]:
            deferred = self.strategy.reduction if self.strategy.defers else None
            return [tuple(each for each in unit if each.call.kind is not deferred) for unit in units]

        repeated = [tuple(map(repeating, operations)) for operations in self._once]

        count = self.setting.micro_batches
        if count == 1:
            return [(1, self._once)]
        return [(1, without_deferred(self._once)), (count - 2, without_deferred(repeated)), (1, repeated)]

    @cached_property
    def operations(self) -> Counter[Operation]:
        """How often a step makes each collective."""
        made = Counter[Operation]()
        for count, units in self._batches:
            for operation in chain(*units):
                made[operation] += count
        return +made

    @cached_property
    def _hops(self) -> dict[Operation, tuple[Hop, ...]]:
        formula = self.strategy.formula(self.setting.world)
        return {operation: node_hops(operation, formula, self.setting.cluster) for operation in self.operations}

    @cached_property
    def node_bytes(self) -> dict[Phase, int]:
        """Bytes that leave each node in one step, by phase."""
        total = dict.fromkeys(Phase, 0)
        for operation, count in self.operations.items():
            total[operation.phase] += count * sum(hop.inter_bytes for hop in self._hops[operation])
        return total

    @cached_property
    def memory(self) -> Memory:
        """The memory of one rank."""
        setting, strategy = self.setting, self.strategy
        placed = [(unit, strategy.placements_of(unit)) for unit in setting.model.units]
        formula, once = strategy.formula(setting.world), list(chain(*self._once))
        return memory_of(placed, once, formula, setting.cluster, setting.element_bytes, strategy.defers)

    def time(self, links: Links, codecs: CodecSpeeds, compute: Compute) -> StepTime:
        """Seconds of a step over these links. Each micro-batch waits for the reductions of the one before."""
        paths = {
            operation: tuple(stage_of(hop, links, codecs) for hop in hops) for operation, hops in self._hops.items()
        }
        phases = dict.fromkeys(Phase, 0.0)
        for operation, count in self.operations.items():
            phases[operation.phase] += count * sum(stage.seconds for stage in paths[operation])
        model = self.setting.model
        input_buffers = None if self.strategy.placements.parameters is Scope.RANK else INPUT_BUFFERS
        compute_s = compute.seconds / self.setting.micro_batches
        step_s = 0.0
        for count, units in self._batches:
            works = [
                UnitWork(
                    unit.num_parameters / model.num_parameters,
                    unit.is_root,
                    **{_PART_OF_WORK[each.phase, each.call.kind]: paths[each] for each in operations},
                )
                for unit, operations in zip(model.units, units, strict=True)
            ]
            step_s += count * passes_s(works, input_buffers, compute_s, compute.forward_share)
        return StepTime(
            compute_s=compute.seconds,
            phases=phases,
            serial_s=compute.seconds + sum(phases.values()),
            step_s=step_s,
        )


@dataclass(frozen=True)
class PipelinePlan(StepPlan):
    """A pipeline over the link between nodes: a stage on each node, whose ranks shard it among themselves.

    docs/plan.md states the model. Each rank takes part in a pipeline with the ranks of its rail. tokens: of a rank in a
    step, as of all other strategies. ValueError: more stages than layers, or the width of activations is not known.
    """

    tokens: float

    def __post_init__(self) -> None:
        check_range("pp: stages (one a node)", self.num_stages, 1, len(self._layers))
        if self.setting.model.width is None:
            raise ValueError("pp: the elements of a token between two blocks are not known: give --width")

    @property
    def num_stages(self) -> int:
        """One on each node."""
        return self.setting.cluster.nodes

    @property
    def num_micro_batches(self) -> int:
        """What goes through a pipeline in a step: the tokens of all its ranks, in parts as long as without one."""
        return self.num_stages * self.setting.micro_batches

    @property
    def bubble(self) -> float:
        """The share of a step in which a stage has nothing to do, were activations there at once."""
        return (self.num_stages - 1) / (self.num_micro_batches + self.num_stages - 1)

    @property
    def cut_bytes(self) -> int:
        """Activations of a step that cross from a node to the next; their gradients come back."""
        setting = self.setting
        assert setting.model.width is not None
        num_tokens = round(self.tokens * setting.cluster.world_size)
        return num_tokens * setting.model.width * setting.element_bytes.gathered

    @cached_property
    def node_bytes(self) -> dict[Phase, int]:
        """Bytes that leave a node in the mean: the first sends no gradients, and the last no activations."""
        mean = self.cut_bytes * (self.num_stages - 1) // self.num_stages
        return {Phase.FORWARD: mean, Phase.BACKWARD: mean, Phase.REDUCTION: 0}

    @cached_property
    def memory(self) -> Memory:
        """The memory of a rank of the largest stage."""
        return self._stage.memory

    def time(self, links: Links, codecs: CodecSpeeds, compute: Compute) -> StepTime:
        """Seconds of a step: its first micro-batch goes through all stages and back, and the others follow behind it.

        Transfers hide behind compute, but for those of the first micro-batch.
        """
        stages, count = self.num_stages, self.num_micro_batches
        share = self._layers_of_stage / len(self._layers)  # of the model's compute
        own = self._stage.time(links, codecs, replace(compute, seconds=compute.seconds * stages * share))
        part_s = own.step_s / count
        hop = Hop(1, inter_bytes=self.cut_bytes // count)
        cross_s = stage_of(hop, links, codecs).seconds if stages > 1 else 0.0
        directions = min(stages - 1, 2)  # a node between two others sends activations to one, gradients to the other
        phases = {
            phase: seconds + count * cross_s * (phase is not Phase.REDUCTION) for phase, seconds in own.phases.items()
        }
        return StepTime(
            compute_s=own.compute_s,
            phases=phases,
            serial_s=(count + stages - 1) * (own.serial_s / count + 2 * cross_s),
            step_s=stages * part_s + 2 * (stages - 1) * cross_s + (count - 1) * max(part_s, directions * cross_s),
        )

    @cached_property
    def _layers(self) -> list[Unit]:
        return [unit for unit in self.setting.model.units if not unit.is_root]

    @property
    def _layers_of_stage(self) -> int:
        """On the busiest."""
        return math.ceil(len(self._layers) / self.num_stages)

    @cached_property
    def _stage(self) -> StepPlan:
        """The largest stage, by itself: its share of the layers, and the larger end of the root's parameters."""
        setting, stages = self.setting, self.num_stages
        largest_first = sorted(self._layers, key=lambda unit: unit.num_parameters, reverse=True)
        layers = largest_first[: self._layers_of_stage]
        roots = [_larger_end(unit) if stages > 1 else unit for unit in setting.model.units if unit.is_root]
        model = replace(setting.model, units=(*roots, *layers))
        cluster = Cluster(1, setting.cluster.ranks_per_node)
        return StepPlan(
            replace(setting, model=model, cluster=cluster, micro_batches=self.num_micro_batches), self.strategy
        )


def _larger_end(root: Unit) -> Unit:
    """The root's largest parameter, or all the others: an embedding is in the first stage, a head in the last."""
    ordered = sorted(root.parameters, key=lambda parameter: parameter.num_elements)
    ends = (tuple(ordered[-1:]), tuple(ordered[:-1]))
    end = max(ends, key=lambda parameters: sum(each.num_elements for each in parameters))
    names = {each.name for each in end}
    trained = root.trained and tuple(each for each in root.trained if each.name in names)
    return replace(root, parameters=end, trained=trained)
