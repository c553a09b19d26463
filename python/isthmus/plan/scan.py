"""The strategy with the shortest step, at one link speed and over all of them, and where it changes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

from isthmus.plan.assumptions import CodecSpeeds, Compute, Links
from isthmus.plan.step import StepPlan, StepTime
from isthmus.plan.strategies import PIPELINE, Strategy

SLOWEST_GBIT_S = 1.0
FASTEST_GBIT_S = 800.0
_NUM_SPEEDS = 117  # evenly spaced on a logarithmic scale
#: Steps that differ less are equal; the model is no better. Then what asks for less is to be preferred: no codec, no
#: Isthmus, less memory.
EQUAL_SHARE = 0.05
_CROSSOVER_SHARE = 1e-3


@dataclass(frozen=True)
class Crossover:
    """The speed of the link between nodes above which another strategy is preferred."""

    inter_gbit_s: float
    below: str
    above: str


@dataclass(frozen=True)
class Comparison:
    """Strategies side by side. memory_bytes: of a rank; what needs more cannot win. None: no limit.

    sources: where the facts of the cluster and its links come from, by name.
    """

    plans: Sequence[StepPlan]
    links: Links
    codecs: CodecSpeeds
    compute: Compute
    memory_bytes: int | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
    _known: dict[tuple[str, float], StepTime] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def candidates(self) -> list[StepPlan]:
        """The strategies that fit, preferred ones first at equal times."""
        fitting = [plan for plan in self.plans if self.fits(plan)]
        return sorted(fitting, key=lambda plan: (_effort(plan.strategy), plan.memory.total))

    def fits(self, plan: StepPlan) -> bool:
        """Whether a rank has the memory."""
        return self.memory_bytes is None or plan.memory.total <= self.memory_bytes

    def time(self, plan: StepPlan, inter_gbit_s: float | None = None) -> StepTime:
        """A strategy's step at this speed between nodes; None: that of the links."""
        speed = self.links.inter_gbit_s if inter_gbit_s is None else inter_gbit_s
        key = (plan.strategy.name, speed)
        if key not in self._known:
            self._known[key] = plan.time(replace(self.links, inter_gbit_s=speed), self.codecs, self.compute)
        return self._known[key]

    def preferred(self, plans: Sequence[StepPlan], inter_gbit_s: float | None = None) -> StepPlan | None:
        """The strategy with the shortest step, or a simpler one that is as good; None if there are none."""
        step_s = [self.time(plan, inter_gbit_s).step_s for plan in plans]
        good_enough = min(step_s, default=0.0) * (1 + EQUAL_SHARE)
        return next((plan for plan, seconds in zip(plans, step_s, strict=True) if seconds <= good_enough), None)

    @cached_property
    def winner(self) -> StepPlan | None:
        """The strategy to prefer at the given links; None if nothing fits."""
        return self.preferred(self.candidates)

    @cached_property
    def crossovers(self) -> list[Crossover]:
        """Where the preferred strategy changes between 1 and 800 Gbit/s, the slowest first."""
        if not self.candidates:
            return []
        return [found for low, high in pairwise(scanned_gbit_s()) for found in self._crossovers_between(low, high)]

    def preferred_name(self, inter_gbit_s: float) -> str:
        """The name of the strategy to prefer at that speed between nodes. Something fits."""
        preferred = self.preferred(self.candidates, inter_gbit_s)
        assert preferred is not None
        return preferred.strategy.name

    def _crossovers_between(self, low: float, high: float) -> list[Crossover]:
        """The crossovers that bisection finds between two speeds at which different strategies win."""
        below, above = self.preferred_name(low), self.preferred_name(high)
        if below == above:
            return []
        middle = math.sqrt(low * high)
        if high / low <= 1 + _CROSSOVER_SHARE:
            return [Crossover(middle, below, above)]
        return self._crossovers_between(low, middle) + self._crossovers_between(middle, high)


def scanned_gbit_s() -> list[float]:
    """The speeds between nodes at which strategies are compared, the slowest first."""
    ratio = FASTEST_GBIT_S / SLOWEST_GBIT_S
    return [SLOWEST_GBIT_S * ratio ** (index / (_NUM_SPEEDS - 1)) for index in range(_NUM_SPEEDS)]


def _effort(strategy: Strategy) -> int:
    """The cost of a strategy beside its layout: nothing, Isthmus or a model that is cut into stages, or accuracy."""
    return 2 if strategy.is_compressed else int(not strategy.is_plain or strategy == PIPELINE)
