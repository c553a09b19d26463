"""Warnings that a job gives once."""

from __future__ import annotations

import logging

import torch.distributed as dist

from isthmus.job import this_job

logger = logging.getLogger("isthmus")


def warn_once(text: str, subject: str = "") -> None:
    """Warn, unless there was a warning in this job on this subject (default: the text)."""
    warned_of = this_job().warned_of
    if text and (subject or text) not in warned_of:
        warned_of.add(subject or text)
        logger.warning("%s", text)


def is_first_rank() -> bool:
    """Return whether this process has rank 0 in the job; true without a default group, as torchft needs none."""
    return not dist.is_initialized() or dist.get_rank() == 0


def warn_on_first_rank(text: str) -> None:
    """Warn on rank 0 of what all ranks find. Called by the native module, on the thread that calls a collective."""
    if is_first_rank():
        warn_once(text)
