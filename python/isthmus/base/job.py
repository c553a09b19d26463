"""What this process knows of its job, by the job's default group (another one makes another job), and warns of once."""

from __future__ import annotations

import logging
import sys
import weakref
from dataclasses import dataclass, field
from typing import NoReturn

import torch.distributed as dist
from torch.optim import Optimizer

logger = logging.getLogger("isthmus")


@dataclass
class Job:
    """What this process knows of the ranks of one default group."""

    #: Names the last meeting of all ranks; "" where they have not met.
    meeting: str = ""
    #: Of its groups that have met; torch gives some names again when their group is gone.
    group_names: set[str] = field(default_factory=set)
    #: What this rank has told other groups of its node, by the option `nodes` for which it holds.
    notes: dict[str, str] = field(default_factory=dict)
    #: Found by the last group of all ranks whose nodes no option gave.
    launcher_contradicts_itself: bool = False
    #: The subjects of which it was warned once.
    warned_of: set[str] = field(default_factory=set)
    #: FSDP2 was given collectives, which the program may replace.
    hands_out_collectives: bool = False
    #: Optimizer steps, and after which one the statistics are looked at again.
    steps: int = 0
    next_check: int = 2
    #: As in `isthmus.stats`, when it was last looked at; and when that was, by time.monotonic().
    peer_waits_s: dict[str, dict[int, float]] = field(default_factory=dict)
    checked_at_s: float = 0.0


_jobs: weakref.WeakKeyDictionary[dist.ProcessGroup, Job] = weakref.WeakKeyDictionary()
_next = Job()  # the job whose default group is not made yet


def this_job() -> Job:
    """Return the job of the default group, or of the one that is made next."""
    global _next
    world = dist.group.WORLD
    if world is None:
        return _next
    if world not in _jobs:
        _jobs[world], _next = _next, Job()
    return _jobs[world]


def warn_once(text: str, subject: str = "") -> None:
    """Warn, unless there was a warning in this job on this subject (default: the text)."""
    warned_of = this_job().warned_of
    if text and (subject or text) not in warned_of:
        warned_of.add(subject or text)
        logger.warning("%s", text)


def is_first_rank() -> bool:
    """Return whether this process has rank 0 in the job; true without a default group, as torchft needs none."""
    return not dist.is_initialized() or dist.get_rank() == 0


# Of this process, whatever its job: those that are alive.
_muons: weakref.WeakSet[Optimizer] = weakref.WeakSet()


def optimizer_stepped(optimizer: Optimizer) -> None:
    """Note an optimizer whose step ended."""
    if "muon" in type(optimizer).__name__.lower():  # torch's own, or one of the others
        _muons.add(optimizer)


def trains_with_muon() -> bool:
    """Return whether an optimizer of that name has made a step in this process and is alive."""
    return bool(_muons)


def refuse(error: ValueError) -> NoReturn:
    """End this command with exit code 2. Collective: the error is the same on all ranks, and rank 0 tells it."""
    if dist.get_rank() == 0:
        print(f"isthmus: {error}", file=sys.stderr, flush=True)
    dist.barrier()  # a launcher may end all ranks when one has failed: not before it is told
    dist.destroy_process_group()
    raise SystemExit(2) from error
