"""What a benchmark runs on: ranks that answer its commands together, on simulated nodes or on those of a launcher;
and where one of them stands once it has joined the others.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

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
    """Ranks, and the links between their nodes."""

    world: World
    #: What the nodes are, for people.
    description: str
    #: Whether the bytes of every node's link are counted.
    counts_links: bool
    #: Limits every node's link to a rate such as "200mbit"; None takes the limit away. None: links are as they are.
    shape: Callable[[str | None], None] | None


@dataclass(frozen=True)
class Place:
    """The device of a rank's tensors, and the counter of its node's links. The world group is Gloo's."""

    device: str = "cpu"
    #: Reads what the node's links have sent, in bytes; None where another rank reads it, or nobody.
    sent_bytes: Callable[[], int] | None = None

    @property
    def backend(self) -> str:
        """The ordinary backend for tensors of the device."""
        return plain_backend(self.device)

    def synchronize(self) -> None:
        """Wait until everything that was enqueued on the device is done."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def held_bytes(self, resets_peak: bool = False) -> int:
        """What this process's tensors hold on the GPU; 0 on the CPU. resets_peak: `peak_bytes` counts from now on."""
        if self.device != "cuda":
            return 0
        if resets_peak:
            torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()

    def peak_bytes(self) -> int:
        """The most that they have held on the GPU; 0 on the CPU."""
        return torch.cuda.max_memory_allocated() if self.device == "cuda" else 0


#: Joins the world as a command says ("timeout_s", "count_link"), or says where the rank stands already.
Join = Callable[[dict[str, Any]], Place]


def plain_backend(device: str) -> str:
    """The ordinary backend for tensors of a device: "cuda", or anything else for the CPU."""
    return "nccl" if device == "cuda" else "gloo"
