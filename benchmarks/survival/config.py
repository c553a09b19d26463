"""Arguments of `isthmus bench survival`."""

from dataclasses import dataclass

from isthmus.benchmarks.common.options import check_ranges, option
from isthmus.benchmarks.simulate import MAX_NODES, parse_link_rate

ARMS = ("isthmus", "gloo")


@dataclass(frozen=True)
class SurvivalConfig:
    """Arguments of `isthmus bench survival`. Raises ValueError naming field, value and range."""

    minutes: int = option(15, "How long each arm trains.")
    kill_every_s: int = option(30, "Seconds between two kills.", name="kill_every")
    members: int = option(3, "Replica groups, 2 to 7, of one process each.")
    link: str = option("50mbit", "Rate of each member's link.")
    timeout_s: int = option(5, "Seconds that a collective may take.", name="timeout")
    arms: tuple[str, ...] = option(ARMS, f"Of {', '.join(ARMS)}.")
    seed: int = option(1, "Of who is killed.")

    def __post_init__(self) -> None:
        parse_link_rate(self.link)
        check_ranges(
            self,
            {
                "minutes": (1, 1440),
                "kill_every_s": (5, 3600),
                "members": (2, MAX_NODES - 1),
                "timeout_s": (1, 600),
            },
        )
        for arm in self.arms:
            if arm not in ARMS:
                raise ValueError(f"arms: '{arm}': expected some of {', '.join(ARMS)}")
