"""Gloo backends over the ranks that meet at a store."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import ProcessGroup, ProcessGroupGloo
from torch.distributed.distributed_c10d import PrefixStore, Store

from isthmus.torch_private.groups import make_gloo


@dataclass(frozen=True)
class GroupRanks:
    """The ranks that make a group, and the store they meet at."""

    store: Store  # from `agree` on under a prefix that these ranks alone use
    rank: int
    global_ranks: Sequence[int]
    world_size: int  # the default group's
    timeout: timedelta
    is_of_job: bool = False  # torch made it of ranks of the default group, with a store by its name
    beyond_job: bool = False  # its ranks are not known to be one job's, and are numbered within the group
    name: str = ""  # torch's
    device: torch.device | None = None  # the GPU that it is bound to
    beside: ProcessGroup | None = None  # whose companion it becomes, and whose backends are its world backends
    node: Callable[[], str] | None = None  # tells this rank's node, for ranks of several jobs; equal texts are one node
    reconfigures: bool = False  # whether torch asks for a group that it connects later, and anew
    interrupt: Callable[[], None] | None = None  # called again and again while they meet; it raises to end that

    @property
    def size(self) -> int:
        """Return how many ranks the group has."""
        return len(self.global_ranks)


def gloo_interfaces() -> list[str]:
    """Return the interfaces that GLOO_SOCKET_IFNAME names; one empty name where Gloo chooses."""
    return os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")


def gloo_backend(group: GroupRanks) -> Any:
    """Construct a Gloo backend over the ranks of the group, over the interfaces that GLOO_SOCKET_IFNAME names.

    It connects its ranks at once, whatever TORCH_GLOO_LAZY_INIT says: a rank that Gloo connects later may wait for ever
    for one that died before.
    """
    devices = [
        ProcessGroupGloo.create_device(interface=interface, lazy_init=False)
        if interface
        else ProcessGroupGloo.create_default_device(lazy_init=False)
        for interface in gloo_interfaces()
    ]
    return make_gloo(PrefixStore("world", group.store), group.rank, group.size, group.timeout, devices)
