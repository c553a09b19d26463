"""A job under torchft, for the campaign: a member is lost, and the others go on as if it had left in peace."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from isthmus.torchft import ProcessGroupIsthmus
from python.torchft.members import enter, gradient

NUM_MEMBERS, STEPS, MOMENTS_PER_STEP = 3, 6, 2
ELEMENTS = 5001  # odd: chunks have padding


@dataclass(frozen=True)
class Quorum:
    """Who summed in a committed step."""

    number: int
    members: tuple[int, ...]


def train(
    rank: int, timeout_s: float, moment: Callable[[], None], plan: Sequence[Quorum]
) -> tuple[torch.Tensor, tuple[Quorum, ...]]:
    """Sum gradients over the members; return the sum of all, and the quorum of each committed step.

    moment: called before a reduction and after it. plan: the quorums of a run that is repeated, which a member leaves
    that is not in one; empty: whoever is there.
    """
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(address, port, is_master=rank == 0, wait_for_workers=False)
    group = ProcessGroupIsthmus(timedelta(seconds=timeout_s), bits=4, error_feedback="on", min_elements=0)
    total, done = torch.zeros(ELEMENTS), list[Quorum]()
    now, entered = Quorum(1, tuple(range(NUM_MEMBERS))), 0
    while len(done) < STEPS:
        step = len(done)
        now = plan[step] if plan else now
        if rank not in now.members:
            break
        try:
            if entered != now.number:
                entered = now.number
                enter(group, f"{address}:{port}", now.members.index(rank), now.members, now.number)
            moment()
            summed = gradient(rank, step, ELEMENTS)
            with group.reducing(("bucket 0", 0, None, 0, None), lambda step=step: step):  # type: ignore[misc]
                group.allreduce([summed], dist.ReduceOp.SUM).wait()
            moment()
            is_well = group.errored() is None
        except dist.DistError:  # the others did not come
            is_well = False
        votes = _vote(store, now, step, rank, is_well, timeout_s)
        is_committed = all(votes.get(member) for member in now.members)
        group.end_step(is_committed, step + is_committed)
        if is_committed:
            total += summed
            done.append(now)
        else:
            assert not plan, f"step {step} of {plan} was refused: {group.errored()}"
            now = Quorum(now.number + 1, tuple(votes))
    if rank == 0 and len(now.members) > 1:  # it hosts the store
        store.wait([f"end {member}" for member in now.members[1:]], timedelta(seconds=4 * timeout_s))
    else:
        store.set(f"end {rank}", "")
    group.shutdown()
    return total, tuple(done)


def _vote(store: dist.Store, quorum: Quorum, step: int, rank: int, is_well: bool, timeout_s: float) -> dict[int, bool]:
    """Tell the others whether this member's sum is well, and return what those say who are there."""
    store.set(f"{quorum.number} {step} {rank}", str(int(is_well)))
    votes = {}
    for member in quorum.members:
        key = f"{quorum.number} {step} {member}"
        try:
            store.wait([key], timedelta(seconds=2 * timeout_s))
        except dist.DistStoreError:
            continue
        votes[member] = store.get(key) == b"1"
    return votes
