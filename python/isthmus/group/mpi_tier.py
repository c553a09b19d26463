"""MPI as the tier between nodes: option ``inter_tier="mpi"``, in a job that mpiexec started."""

from __future__ import annotations

import atexit
import functools
import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from isthmus._C import Transport


def _load() -> ModuleType:
    try:
        from isthmus import _mpi
    except ImportError as error:
        raise ImportError(
            f"inter_tier=mpi: isthmus was built without MPI, or its library is missing ({error}): install an MPI for "
            "development and build isthmus again"
        ) from error
    return _mpi


def join(global_rank: int, world_size: int) -> None:
    """Start MPI in this process, and check that it has the same rank in torch and in MPI.

    Raises ImportError if isthmus has no MPI, and RuntimeError if MPI cannot be used or the ranks differ.
    """
    try:
        mpi_rank, mpi_size = _load().start()
    except RuntimeError as error:
        raise RuntimeError(f"inter_tier=mpi: {error}") from None
    _leave_at_exit()
    if (mpi_rank, mpi_size) != (global_rank, world_size):
        raise RuntimeError(
            f"inter_tier=mpi: rank {global_rank} of {world_size} is rank {mpi_rank} of {mpi_size} in MPI_COMM_WORLD"
        )


@functools.cache
def _leave_at_exit() -> None:
    # Registered before the groups' own handlers, so that it runs after them, when they have released their tiers.
    atexit.register(_leave, os.getpid())


def make_tier(global_ranks: Sequence[int], timeout: timedelta) -> Transport:
    """Construct the tier between nodes of these ranks, each of which is on a node of its own. Collective."""
    tier: Transport = _load().make_tier("inter", list(global_ranks), list(range(len(global_ranks))), timeout)
    return tier


def _leave(process: int) -> None:
    """Finalise MPI, if this process initialised it; a forked child did not.

    After an exception other ranks may never finalise, so this one does not either, and mpiexec ends the job.
    """
    if os.getpid() == process and getattr(sys, "last_value", None) is None:
        _load().finish()
