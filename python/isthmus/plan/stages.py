"""A pipeline over the link between nodes: a stage on each node, whose ranks shard it among themselves.

docs/plan.md states the model. Each rank takes part in a pipeline with the ranks of its rail.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

from isthmus.plan.assumptions import CodecSpeeds, Compute, Links
from isthmus.plan.memory import Memory
from isthmus.plan.pipeline import stage_of
from isthmus.plan.placement import Cluster, Phase
from isthmus.plan.ranges import check_range
from isthmus.plan.step import StepPlan, StepTime
from isthmus.plan.units import Unit
from isthmus.plan.volumes import Hop


@dataclass(frozen=True)
class PipelinePlan(StepPlan):
    """A pipeline's step. tokens: of a rank in a step, as of all other strategies.

    ValueError: more stages than layers, or the width of activations is not known.
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
    trained = (
        None
        if root.trained is None
        else tuple(each for each in root.trained if each.name in {part.name for part in end})
    )
    return replace(root, parameters=end, trained=trained)
