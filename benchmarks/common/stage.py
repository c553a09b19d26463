"""What a benchmark runs on: ranks that carry out its requests together, on simulated nodes or on those of a launcher;
and where one of them stands once it has joined the others.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from isthmus.benchmarks.simulate.network import interfaces_sent_bytes
from isthmus.group.cuda import ask_for_connections


@dataclass(frozen=True)
class Stage:
    """Ranks, and the links between their nodes."""

    #: As `RankWorld.request`: request(name, silence_timeout_s, on_event, **arguments).
    request: Callable[..., list[Any]]
    #: What the nodes are, for people.
    description: str
    #: Whether the bytes of every node's link are counted.
    counts_links: bool
    #: Limits every node's link to a rate such as "200mbit"; None takes the limit away. None: links are as they are.
    shape: Callable[[str | None], None] | None


@dataclass(frozen=True)
class RankDevice:
    """The device of a rank's tensors, and the counter of its node's links. The world group is Gloo's."""

    device: str = "cpu"
    #: Reads what the node's links have sent, in bytes; None where another rank reads it, or nobody.
    counter: Callable[[], int] | None = None

    def sent_bytes(self, before: int | None = 0) -> int | None:
        """What the node's links have sent since the counter said `before`; None where this rank does not count."""
        return None if self.counter is None or before is None else self.counter() - before

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


#: Joins the world (device, seconds that a collective may take, whether links are counted), or says where the rank
#: stands already.
Join = Callable[[str, float, bool], RankDevice]


def join_simulated(device: str, timeout_s: float, counts_links: bool) -> RankDevice:
    """Join the world of a `RankWorld`. Ranks share the machine's cores: each computes on one thread.

    On the GPU of its index in the node, if the device is "cuda".
    """
    torch.set_num_threads(1)
    if device == "cuda":
        ask_for_connections()
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.init()  # type: ignore[no-untyped-call]  # or DeviceMesh chooses anew, by the index alone
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_s))
    counts = counts_links and os.environ["LOCAL_RANK"] == "0"
    interface = os.environ["GLOO_SOCKET_IFNAME"]
    return RankDevice(device, (lambda: interfaces_sent_bytes()[interface]) if counts else None)


def sum_of_counts(counts: Iterable[int | None]) -> int | None:
    """What all ranks that count have counted; None where none does."""
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def plain_backend(device: str) -> str:
    """The ordinary backend for tensors of a device: "cuda", or anything else for the CPU."""
    return "nccl" if device == "cuda" else "gloo"
