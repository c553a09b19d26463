"""The order in which arms are stepped: alternating, so that a drift of the machine affects all alike."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from isthmus.benchmarks.training.config import TrainingConfig

UNSHAPED = "unshaped"
#: The link of ranks that a launcher started.
HERE = "here"
#: The links of a machine's islands.
ISLANDS = "islands"
_LOSS_SEGMENT_STEPS = 10
_TIMED_SEGMENT_STEPS = 2


@dataclass(frozen=True)
class Segment:
    """Steps of one arm in a row, all of one kind.

    Kinds: "loss" (no limit on the link; timed where no limit comes later), "audited" (bytes of each collective counted
    apart), "settling" (the first at a link after another arm: the link's bucket is as that arm left it, so it is not
    timed), and "timed".
    """

    arm: str
    link: str
    kind: str
    num_steps: int


def schedule(config: TrainingConfig, links: Sequence[str]) -> list[Segment]:
    """All segments in order: steps for the loss, audited steps, then the steps at each of `links`."""
    own_link = unlimited_link(config)
    segments = [
        Segment(arm, own_link, "loss", num_steps)
        for arm, num_steps in _rounds(config, config.steps, _LOSS_SEGMENT_STEPS)
    ]
    segments += [Segment(arm, own_link, "audited", config.audited_steps) for arm in config.arms]
    for link in links:
        for arm, num_steps in _rounds(config, config.timed_steps, _TIMED_SEGMENT_STEPS):
            segments += [Segment(arm, link, "settling", 1), Segment(arm, link, "timed", num_steps)]
    return segments


def unlimited_link(config: TrainingConfig) -> str:
    """What the link is called while nothing limits it."""
    return HERE if config.here else ISLANDS if config.islands else UNSHAPED


def steps_per_arm(segments: Sequence[Segment]) -> int:
    """How many steps each arm takes in all."""
    return sum(segment.num_steps for segment in segments if segment.arm == segments[0].arm)


def _rounds(config: TrainingConfig, num_steps: int, segment_steps: int) -> Iterator[tuple[str, int]]:
    """Cut every arm's steps into segments; each round begins with another arm."""
    for index, begin in enumerate(range(0, num_steps, segment_steps)):
        turn = index % len(config.arms)
        for arm in config.arms[turn:] + config.arms[:turn]:
            yield arm, min(segment_steps, num_steps - begin)
