"""What this process knows of its job, by the job's default group: another default group makes another job."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field

import torch.distributed as dist


@dataclass
class Job:
    """What this process knows of the ranks of one default group."""

    #: Found by the last group of all ranks whose nodes no option gave.
    launcher_contradicts_itself: bool = False
    #: The subjects of which it was warned once.
    warned_of: set[str] = field(default_factory=set)
    #: Optimizer steps, and after which one the statistics are looked at again.
    steps: int = 0
    next_look: int = 2
    #: As in `isthmus.stats`, when it was last looked at; and when that was, by time.monotonic().
    peer_waits_s: dict[str, dict[int, float]] = field(default_factory=dict)
    looked_at_s: float = 0.0


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
