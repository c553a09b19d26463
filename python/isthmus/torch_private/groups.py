"""Private names of torch's process groups and of autograd. `import torch` imports this, so it imports nothing heavy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from operator import attrgetter
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import GroupName, Store

# --- The groups of the process; notes between ranks of different groups ---
# Instead: `dist.process_groups()`, `dist.default_store()`


def all_groups() -> list[dist.ProcessGroup]:
    """Return all process groups that this process is in, in the order in which they were made."""
    return [group for group in dist.distributed_c10d._world.pg_map if isinstance(group, dist.ProcessGroup)]


def job_store() -> Store:
    """Return the store of the default group."""
    return dist.distributed_c10d._get_default_store()


# --- The backends of a group, and their timeouts ---
# Instead: public getters and setters

timeout_of: Callable[[Any], timedelta] = attrgetter("_timeout")  # in the options of a backend


def backends_by_device(group: dist.ProcessGroup) -> dict[str, Any]:
    """Return the backends of a group by type of device: "cpu", "cuda"."""
    return {device.type: group._get_backend(device) for device in group._device_types}


def set_timeout(options: Any, timeout: timedelta) -> None:
    """Set the timeout in the options of a backend."""
    options._timeout = timeout


def set_timeout_of_backend(backend: Any, timeout: timedelta) -> None:
    """Set the timeout of a backend's later operations."""
    backend._set_default_timeout(timeout)


# --- Which calls torch makes only when a coalescing manager ends ---
# Instead: none asked, as nobody needs them


def num_deferred_calls() -> int:
    """Return how many collectives were called in coalescing managers that have not ended."""
    return sum(map(len, dist.distributed_c10d._world.pg_coalesce_state.values()))


# --- To construct a backend, and a group of one beside the default group ---
# Instead: `dist.make_backend(name, store, ...)`, and a public constructor of groups


class Addresses(Store):
    """Where the ranks of a Gloo backend leave their addresses, for the time that they connect.

    Gloo asks for one after the other, each with three answers of the store to wait for: this one asks for all at once.
    Of each of its devices a rank leaves its address below "<device>/<rank>"; other keys go through as they are.
    """

    def __init__(self, store: Store, size: int) -> None:
        super().__init__()
        self._store, self._size = store, size
        self._read: dict[str, bytes] = {}

    def set(self, key: str, value: str) -> None:
        """Leave this rank's address."""
        self._store.set(key, value)

    def wait(self, keys: list[str], timeout: timedelta) -> None:  # type: ignore[override]
        """Wait for these addresses, and for the others of the same device."""
        unread = [key for key in keys if key not in self._read]
        if not unread:
            return
        device, _, rank = unread[0].rpartition("/")
        if rank.isdecimal() and int(rank) < self._size:
            unread = [f"{device}/{rank}" for rank in range(self._size)]
        self._store.wait(unread, timeout)
        self._read.update(zip(unread, self._store.multi_get(unread), strict=True))

    def get(self, key: str) -> bytes:
        """Return an address."""
        return self._read[key] if key in self._read else self._store.get(key)


def gloo_options(global_ranks: Sequence[int], timeout: timedelta, devices: Sequence[Any], threads: int) -> Any:
    """Return options of a Gloo backend over these devices of `ProcessGroupGloo`."""
    options: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = list(devices)
    options._threads = threads
    options._timeout = timeout
    options.global_ranks_in_group = list(global_ranks)  # split() reads it past its end where it is empty
    return options


def make_gloo(store: Store, rank: int, global_ranks: Sequence[int], timeout: timedelta, devices: Sequence[Any]) -> Any:
    """Construct a Gloo backend over these devices of `ProcessGroupGloo`."""
    size = len(global_ranks)
    options = gloo_options(global_ranks, timeout, devices, threads=2 * len(devices))
    return dist.ProcessGroupGloo(Addresses(store, size), rank, size, options)


def options_of_parts(backend: Any, timeout: timedelta) -> Any:
    """Return options for the backends that split() of a Gloo backend makes, over the same devices.

    One thread, which is idle: they send and receive alone, which callers' threads and those of the devices do.
    """
    return gloo_options([], timeout, backend.options._devices, threads=1)


def make_nccl(
    store: Store, rank: int, global_ranks: Sequence[int], timeout: timedelta, name: str, device: torch.device | None
) -> Any:
    """Construct the backend that torch makes for "nccl". It connects at its first call."""
    options = dist.ProcessGroupNCCL.Options()
    if hasattr(options, "lazy_init"):  # since torch 2.15, where an environment variable chooses between two kinds
        options.lazy_init = True
        dist.Backend._ensure_backend_registered(dist.Backend.NCCL)
        request: Any = dist.distributed_c10d._DistributedBackendOptions()  # type: ignore[attr-defined]
        request.store, request.group_rank, request.group_size = store, rank, len(global_ranks)
        request.timeout, request.group_id = timeout, GroupName(name)
        request.global_ranks_in_group = list(global_ranks)
        # Not the group itself, which would be bound to the device that is chosen where it is bound to none.
        request.process_group = dist.ProcessGroup(store, rank, len(global_ranks))
        request.process_group.bound_device_id = device
        return dist.Backend._plugins[dist.Backend.NCCL.upper()].creator_fn(request, options)
    options._timeout = timeout
    options.global_ranks_in_group = list(global_ranks)
    options.group_name = GroupName(name)
    return dist.ProcessGroupNCCL(store, rank, len(global_ranks), options)


def make_group(backend: Any, store: Store, rank: int, size: int, devices: Sequence[str]) -> dist.ProcessGroup:
    """Construct a group that has this backend for each of these types of device, and that `dist` does not know."""
    made = dist.ProcessGroup(store, rank, size)
    made._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
    for device in devices:
        made._register_backend(torch.device(device), dist.ProcessGroup.BackendType.CUSTOM, backend)
    return made


# --- Whether an optimizer's step is inside a backward pass, and so one parameter's ---
# Instead: an argument of the step's hook


def is_in_backward_pass() -> bool:
    """Return whether this thread runs a backward pass."""
    return torch._C._current_graph_task_id() >= 0
