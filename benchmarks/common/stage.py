"""What a benchmark runs on: ranks that answer its commands together, on simulated nodes or on those of a launcher."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

Event = dict[str, Any]


def ignore(event: Event) -> None:
    """Take no notice of an event."""


class World(Protocol):
    """All ranks."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""

    def request(
        self, command: dict[str, Any], silence_timeout_s: float, on_event: Callable[[Event], None] = ignore
    ) -> list[dict[str, Any]]:
        """Let all ranks carry out `command`; returns their answers, by rank. Events carry the "rank" they come from."""


@dataclass(frozen=True)
class Stage:
    """Ranks, their nodes, and the links between these."""

    world: World
    nodes: int
    ranks_per_node: int
    #: What the nodes are, for people.
    description: str
    #: Whether the bytes of every node's link are counted.
    counts_links: bool
    #: Limits every node's link to a rate such as "200mbit"; None takes the limit away. None: links are as they are.
    shape: Callable[[str | None], None] | None
