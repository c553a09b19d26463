"""A job under torchft, for the campaign: a member is lost, and the others go on as if it had left in peace."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist

from isthmus.torchft import ProcessGroupIsthmus
from python.torchft.members import enter, gradient, reduce_one

NUM_MEMBERS, STEPS = 3, 4
ELEMENTS = 5001  # odd: chunks have padding


class Quorum(NamedTuple):
    """Who summed in a committed step."""

    number: int
    members: tuple[int, ...]


def train(
    rank: int, timeout_s: float, moment: Callable[[], None], plan: Sequence[Quorum]
) -> tuple[torch.Tensor, tuple[Quorum, ...], str]:
    """Sum gradients over the members; return the sum of all, the quorum of each committed step, and the first error.

    moment: called before a reduction and after it. plan: the quorums of a run that is repeated, which a member leaves
    that is not in one; empty: whoever is there.
    """
    if plan and rank not in plan[0].members:  # the store may be gone before it comes
        return torch.zeros(ELEMENTS), (), ""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(address, port, is_master=rank == 0, wait_for_workers=False)
    group = ProcessGroupIsthmus(timedelta(seconds=timeout_s), error_feedback="on", min_elements=0)
    total, done, first_error = torch.zeros(ELEMENTS), list[Quorum](), ""
    now, entered = Quorum(1, tuple(range(NUM_MEMBERS))), 0
    while len(done) < STEPS:
        step = len(done)
        now = plan[step] if plan else now
        if rank not in now.members:
            break
        summed = None
        try:
            if entered != now.number:
                entered = now.number
                enter(group, f"{address}:{port}", now.members.index(rank), now.members, now.number)
            moment()
            summed = reduce_one(group, gradient(rank, step, ELEMENTS), step)
            moment()
        except RuntimeError as error:  # not a planned one
            first_error = first_error or str(error)
        votes = _vote(store, now, step, rank, summed is not None, timeout_s)
        is_committed = all(votes.get(member) for member in now.members)
        group.end_step(is_committed, step + is_committed)
        if summed is not None and is_committed:
            total += summed
            done.append(now)
        else:
            assert not plan, f"step {step} of {plan} was refused: {first_error}"
            now = Quorum(now.number + 1, tuple(votes))
    store.set(f"end {rank}", "")
    if rank == 0:  # it hosts the store
        store.wait([f"end {member}" for member in now.members], timedelta(seconds=4 * timeout_s))
    group.shutdown()
    return total, tuple(done), first_error


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
