"""The CUDA part of a process group: whether ranks have a GPU."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist


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
    #: Whether it is a MIG device, a part of the GPU at that address.
    is_slice: bool = False


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


def bound_device(group: dist.ProcessGroup | None) -> torch.device | None:
    """Return the GPU that a group of torch's is bound to, or else the default group; None if neither is to one."""
    devices = [made.bound_device_id for made in (group, dist.group.WORLD) if made is not None]
    return next((device for device in devices if device is not None and device.type == "cuda"), None)


def why_no_gpu() -> str:
    """Return why this process has no GPU, "" if it has one. Starts nothing on it."""
    if not _built_with_cuda():
        return "isthmus was built without CUDA"
    if not torch.cuda.is_available():
        return "torch sees no GPU"
    return "" if dist.is_nccl_available() else "torch has no NCCL"


def find_gpu(device: torch.device | None = None) -> Gpu:
    """Look for the GPU of this process: `device`, by default the current one."""
    missing = why_no_gpu()
    if missing:
        return Gpu(missing=missing)
    properties = torch.cuda.get_device_properties(torch.cuda.current_device() if device is None else device)
    place = [getattr(properties, name, None) for name in ("pci_domain_id", "pci_bus_id", "pci_device_id")]
    known = [number for number in place if number is not None]
    is_slice = " MIG " in f" {properties.name} "
    bus_id = "{:04x}:{:02x}:{:02x}.0".format(*known) if len(known) == len(place) else ""
    return Gpu(bus_id=bus_id, is_slice=is_slice)
