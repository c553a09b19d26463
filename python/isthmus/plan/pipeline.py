"""A step in time: the passes of FSDP2 over the units, with its prefetching.

docs/plan.md states the model. Every resource serves its work in a fixed order, that of FSDP2's calls, whatever the
durations. So a shorter duration anywhere never makes a step longer.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from isthmus.plan.assumptions import FORWARD_SHARE
from isthmus.plan.timing import Resource, Stage

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

    def step_s(self, compute_s: float) -> float:
        """Seconds of one forward and one backward pass."""
        clock = _Clock()
        forward_s = self._forward(clock, compute_s * FORWARD_SHARE)
        return self._backward(clock, forward_s, compute_s * (1 - FORWARD_SHARE))

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
