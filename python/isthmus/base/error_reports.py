"""Lets one rank report an error that ends all ranks alike: a line and a traceback there, nothing on the others."""

from __future__ import annotations

import logging
import os
import sys
import time
from types import ModuleType, TracebackType
from typing import TypeVar

from isthmus.group.nodes.launchers import launched_as

logger = logging.getLogger("isthmus")

Raised = TypeVar("Raised", bound=Exception)

#: How long other ranks wait for rank 0 to report. If they ended first, a launcher would end all ranks before rank 0 had
#: reported. A rank with a bad option that is still alive then reports itself: the option may be bad on it alone.
FIRST_RANK_S = 5.0
#: The attribute of errors that all ranks of a group raise: this process's rank in the group.
_RANK = "_isthmus_rank"


def log_to_stderr() -> None:
    """Send log messages to stderr, unless the program has configured logging."""
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("isthmus: %(levelname)s: %(message)s"))
        logger.addHandler(handler)


def on_all(error: Raised, rank: int) -> Raised:
    """Mark an error that every rank of a group raises, with the same text, with this rank in the group. Returns it."""
    setattr(error, _RANK, rank)
    return error


def tell_uncaught_once(core: ModuleType) -> None:
    """Report errors of Isthmus that end a process once a job. Code that catches or hooks errors sees no change.

    core: the native module. Called once, after it was loaded. With ISTHMUS_LOG=debug all ranks show tracebacks.
    """
    show = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        common_rank: int | None = getattr(error, _RANK, None)
        rank = _launched_rank() if common_rank is None and isinstance(error, core.OptionError) else common_rank
        if rank is None or os.environ.get("ISTHMUS_LOG") == "debug":
            show(kind, error, traceback)
            return
        log_to_stderr()
        text = str(error).removeprefix("isthmus: ")
        if rank == 0:
            logger.error("%s", text)
            show(kind, error, traceback)
        else:
            time.sleep(FIRST_RANK_S)
            if common_rank is None:
                logger.error("rank %d: %s", rank, text)
        logger.debug("rank %d ends", rank, exc_info=(kind, error, traceback))

    sys.excepthook = hook


def _launched_rank() -> int | None:
    """Return the rank that the launcher gave this process, None if it is alone. There may be no process group yet."""
    claim = launched_as(os.environ)
    if claim is not None:
        return claim.rank if claim.size > 1 else None
    rank, size = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    return int(rank) if rank.isdecimal() and size.isdecimal() and int(size) > 1 else None
