"""Which backend of Isthmus a process group has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.distributed as dist

from isthmus import _native

if TYPE_CHECKING:
    from isthmus import _C


def isthmus_backend(group: dist.ProcessGroup) -> _C.Backend | None:
    """Return the backend of `group` that is of Isthmus, for whichever devices; None if there is none."""
    native = _native.load()
    for device in group._device_types:
        backend = group._get_backend(device)
        backend = getattr(backend, "wrapped_pg", backend)  # TORCH_DISTRIBUTED_DEBUG=DETAIL wraps it
        if isinstance(backend, native.Backend):
            return backend  # type: ignore[no-any-return]
    return None
