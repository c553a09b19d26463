"""Finds the backend of a process group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.distributed as dist

from isthmus import native

if TYPE_CHECKING:
    from isthmus import _C


def isthmus_backend(group: dist.ProcessGroup) -> _C.Backend | None:
    """Return the Isthmus backend of `group`, for any device; None if there is none."""
    core = native.load()
    for device in group._device_types:
        backend = group._get_backend(device)
        backend = getattr(backend, "wrapped_pg", backend)  # TORCH_DISTRIBUTED_DEBUG=DETAIL wraps it
        if isinstance(backend, core.Backend):
            return backend  # type: ignore[no-any-return]
    return None


def backend_of(group: dist.ProcessGroup | None) -> _C.Backend:
    """Return the backend of `group` (default: all ranks). Raises ValueError where it is not Isthmus."""
    if group is None:
        group = dist.group.WORLD
    if group is None:
        raise ValueError("there is no process group: call torch.distributed.init_process_group first")
    backend = isthmus_backend(group)
    if backend is None:
        raise ValueError(f"the backend of this group is {dist.get_backend(group)}, not isthmus")
    return backend
