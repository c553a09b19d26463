"""The CUDA part of a process group: whether ranks have a GPU, and NCCL's world backend and tiers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import GroupName, PrefixStore, Store

from isthmus.topology.node_map import told_by_ranks

if TYPE_CHECKING:
    from isthmus import _C


def devices() -> list[str]:
    """Return the types of device that the backend is registered for.

    Does not look for GPUs, which would start CUDA in every process that imports torch.
    """
    return ["cpu", "cuda"] if _built_with_cuda() else ["cpu"]


def _built_with_cuda() -> bool:
    try:
        from isthmus._build_info import CUDA
    except ImportError:  # making a group reports the error
        return False
    return bool(CUDA)


@dataclass(frozen=True)
class Gpu:
    """Facts about a rank's GPU, for the other ranks."""

    #: "0000:07:00.0"; "" if there is no GPU, or its address is unknown.
    bus_id: str = ""
    #: Why this process has no GPU; "" if it has one.
    missing: str = ""


# CUDA's variable for the number of queues into a GPU, which streams share, and the largest value.
CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
_MOST_CONNECTIONS = "32"


def ask_for_connections() -> None:
    """Ask CUDA for as many queues as it has, unless the environment sets the number or CUDA has read it already."""
    if _built_with_cuda() and not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        os.environ.setdefault(CONNECTIONS, _MOST_CONNECTIONS)


def connections_warning() -> str:
    """Return a warning about the number of queues that the environment asks for, "" if it is fine."""
    if os.environ.get(CONNECTIONS) != "1":
        return ""
    return (
        f"{CONNECTIONS}=1: all streams share one queue into the GPU, and exchanges between nodes wait behind compute "
        f"kernels that were launched before; unset it, or set it to {_MOST_CONNECTIONS}"
    )


def find_gpu() -> Gpu:
    """Look for the GPU of this process: the one that the default group is bound to, else the current one."""
    if not _built_with_cuda():
        return Gpu(missing="isthmus was built without CUDA")
    if not torch.cuda.is_available():
        return Gpu(missing="torch sees no GPU")
    if not dist.is_nccl_available():
        return Gpu(missing="torch has no NCCL")
    world = dist.group.WORLD
    bound = world.bound_device_id if world is not None else None
    properties = torch.cuda.get_device_properties(torch.cuda.current_device() if bound is None else bound)
    place = [getattr(properties, name, None) for name in ("pci_domain_id", "pci_bus_id", "pci_device_id")]
    known = [number for number in place if number is not None]
    return Gpu(bus_id="{:04x}:{:02x}:{:02x}.0".format(*known)) if len(known) == len(place) else Gpu()


def why_none(global_ranks: Sequence[int], gpus: Sequence[Gpu]) -> str:
    """Return why a group of ranks with these GPUs cannot take CUDA tensors; "" if it can. Equal on all ranks."""
    return told_by_ranks(global_ranks, [gpu.missing for gpu in gpus])


@dataclass(frozen=True)
class NcclGroup:
    """The ranks of a process group, and the settings that NCCL's backends over some of them share."""

    store: Store  # under a prefix that this group alone uses
    name: str  # for torch's flight recorder
    rank: int
    global_ranks: Sequence[int]
    timeout: timedelta

    def backend(self, tier: str, ranks: Sequence[int], own_prefix: str, max_ctas: int | None = None) -> Any:
        """Construct NCCL's backend over some ranks of the group; None for one rank alone.

        max_ctas: how many multiprocessors it may occupy, equal on all ranks. NCCL prefers NCCL_MAX_CTAS, if it is set.
        """
        if len(ranks) < 2 and tier != "world":
            return None
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = self.timeout
        options.global_ranks_in_group = [self.global_ranks[rank] for rank in ranks]
        options.group_name = GroupName(self.name if tier == "world" else f"{self.name}/isthmus_{tier}")
        if max_ctas is not None:
            options.config.max_ctas = max_ctas
        store = PrefixStore(f"nccl/{own_prefix}", self.store)
        return dist.ProcessGroupNCCL(store, list(ranks).index(self.rank), len(ranks), options)


def make_parts(
    group: NcclGroup, native: Any, node: int, node_ranks: Sequence[int], rail: Sequence[int]
) -> _C.CudaParts:
    """Construct the backends of a group, the world's first: torch's monitor watches a process's first backend.

    node_ranks, rail: the tiers' ranks; empty without two tiers. NCCL connects nothing yet.
    """
    world = group.backend("world", range(len(group.global_ranks)), "world")
    local_index = list(node_ranks).index(group.rank) if node_ranks else 0
    tiers = {
        name: group.backend(name, ranks, f"{name}/{number}", max_ctas)
        for name, ranks, number, max_ctas in (
            ("intra", node_ranks, node, native.INTRA_MAX_CTAS),
            ("inter", rail, local_index, native.INTER_MAX_CTAS),
            ("gather_intra", node_ranks, node, native.INTRA_MAX_CTAS),
            ("gather_inter", rail, local_index, native.INTER_MAX_CTAS),
        )
    }
    parts: _C.CudaParts = native.CudaParts(world=world, **tiers)
    return parts
