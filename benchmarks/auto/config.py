"""Arguments of `isthmus bench auto`."""

from dataclasses import dataclass, replace

from isthmus.benchmarks.auto.arms import DEFAULT_AUTO_ARMS, check_auto_arms
from isthmus.benchmarks.common.options import check_ranges, option, part
from isthmus.benchmarks.simulate import parse_link_rate
from isthmus.benchmarks.training.config import TrainingConfig
from isthmus.benchmarks.training.schedule import UNSHAPED


@dataclass(frozen=True)
class AutoConfig:
    """Arguments of `isthmus bench auto`. Raises ValueError naming field, value and range.

    training: of each arm; its own arms and links do not matter.
    """

    training: TrainingConfig = part(
        TrainingConfig(arms=("fsdp",)),
        nodes=None,
        ranks_per_node=None,
        dtype=None,
        width=None,
        num_layers=None,
        timeout_s=None,
    )
    arms: tuple[str, ...] = option(DEFAULT_AUTO_ARMS, "Which arms.")
    links: tuple[str, ...] = option(
        ("50mbit", "200mbit", "1gbit", UNSHAPED),
        'Rate of every node\'s link, or "unshaped"; repeatable.',
        name="link",
        is_repeatable=True,
    )
    rounds: int = option(4, "Turns of each arm at each link.")
    steps: int = option(2, "Timed steps of a turn.")

    def __post_init__(self) -> None:
        check_auto_arms(self.arms)
        for link in self.links:
            if link != UNSHAPED:
                parse_link_rate(link)
        check_ranges(self, {"rounds": (1, 10_000), "steps": (1, 10_000)})
        if not self.links:
            raise ValueError("no links: expected some, as in 50mbit")


def quick(config: AutoConfig) -> AutoConfig:
    """A check, not a measurement."""
    return replace(config, rounds=1, steps=1, links=config.links[:1])
