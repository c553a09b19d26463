"""Where a rank of a benchmark stands once it has joined the others."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


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


#: Joins the world as a command says ("timeout_s", "count_link"), or says where the rank stands already.
Join = Callable[[dict[str, Any]], Place]


def plain_backend(device: str) -> str:
    """The ordinary backend for tensors of a device: "cuda", or anything else for the CPU."""
    return "nccl" if device == "cuda" else "gloo"
