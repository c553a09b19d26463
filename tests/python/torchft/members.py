"""Members of a quorum as threads of one process."""

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from typing import Any, TypeVar

import torch
from torch.distributed import ReduceOp, TCPStore
from torchft import process_group

from isthmus.model.calls import Described
from isthmus.torchft import ProcessGroupIsthmus

Result = TypeVar("Result")

LONG = timedelta(seconds=120)  # only a hang reaches it
SHORT = timedelta(seconds=2)
ELEMENTS = 20_001  # odd: chunks have padding

_quorums = count(1)


def enter(
    group: ProcessGroupIsthmus, store: str, rank: int, numbers: Sequence[int], quorum: int = 1, tells_ranks: bool = True
) -> None:
    """Enter a quorum by the contract of the torchft that is installed, as its Manager does.

    store: its address. numbers: those of all members, by their ranks. tells_ranks: whether the group is told them.
    """
    name = f"r_{numbers[rank]}"
    if hasattr(group, "configure"):  # torchft 0.2
        address = f"{store}/{quorum}"
        group.configure(address, name, rank, len(numbers), quorum, 0, 1, list(numbers) if tells_ranks else None)
        return
    group.set_rank_info(name, 0, 1, numbers[rank] if tells_ranks else None)
    own = json.loads(group.get_reconfigure_handle())
    handles = [{"id": number, "store": store, "global_rank": number if tells_ranks else None} for number in numbers]
    handles[rank] |= {"id": own["id"], "global_rank": own["global_rank"]}
    options = process_group.ReconfigureOptions()
    options.uuid, options.handles = quorum, [json.dumps(handle) for handle in handles]
    group.reconfigure(options).wait()


class Members:
    """Groups that meet at one store. tells_ranks: whether they are told the numbers of all members."""

    tells_ranks = True

    def __init__(self) -> None:
        self.store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        self.made: list[ProcessGroupIsthmus] = []

    def make(self, timeout: timedelta = LONG, **options: Any) -> ProcessGroupIsthmus:
        self.made.append(ProcessGroupIsthmus(timeout, **({"min_elements": 0} | options)))
        return self.made[-1]

    def meet(self, groups: Sequence[ProcessGroupIsthmus], ids: Sequence[int] | None = None, size: int = 0) -> int:
        quorum, enter_it = self._quorum(groups, ids, size)
        at_once(len(groups), enter_it)
        return quorum

    def errors(
        self, groups: Sequence[ProcessGroupIsthmus], ids: Sequence[int] | None = None, size: int = 0, port: int = 0
    ) -> list[Exception | None]:
        """Do so, and return what each raised. port: of another store."""
        return errors_at_once(len(groups), self._quorum(groups, ids, size, port)[1])

    def _quorum(
        self, groups: Sequence[ProcessGroupIsthmus], ids: Sequence[int] | None, size: int, port: int = 0
    ) -> tuple[int, Callable[[int], None]]:
        quorum = next(_quorums)
        numbers = list(ids if ids is not None else range(size or len(groups)))
        store = f"localhost:{port or self.store.port}"
        return quorum, lambda rank: enter(groups[rank], store, rank, numbers, quorum, self.tells_ranks)


@contextmanager
def members() -> Iterator[Members]:
    made = Members()
    try:
        yield made
    finally:
        at_once(len(made.made), lambda rank: made.made[rank].shutdown())


def at_once(size: int, function: Callable[[int], Result]) -> list[Result]:
    """Call the function for each rank in a thread of its own; raise the first error."""
    with ThreadPoolExecutor(max(1, size)) as executor:
        return list(executor.map(function, range(size)))


def errors_at_once(size: int, function: Callable[[int], object]) -> list[Exception | None]:
    """Call the function for each rank in a thread of its own, and return what each raised."""

    def error(rank: int) -> Exception | None:
        try:
            function(rank)
        except Exception as raised:
            return raised
        return None

    return at_once(size, error)


def gradient(rank: int, step: int, num_elements: int = ELEMENTS) -> torch.Tensor:
    return torch.randn(num_elements, generator=torch.Generator().manual_seed(1000 * step + rank))


def reduce_one(group: ProcessGroupIsthmus, tensor: torch.Tensor, step: int) -> torch.Tensor:
    summed = tensor.clone()
    with group.reducing(Described("bucket 0"), lambda: step):
        group.allreduce([summed], ReduceOp.SUM).wait()
    if error := group.errored():
        raise error
    return summed


def train_step(
    groups: Sequence[ProcessGroupIsthmus], step: int, committed: bool = True, num_elements: int = ELEMENTS
) -> torch.Tensor:
    """Sum gradients that depend on rank and step; check that all got equal bits, and return them."""

    def one(rank: int) -> torch.Tensor:
        summed = reduce_one(groups[rank], gradient(rank, step, num_elements), step)
        groups[rank].end_step(committed, step + committed)
        return summed

    sums = at_once(len(groups), one)
    assert all(torch.equal(one, sums[0]) for one in sums)
    return sums[0]


def given(size: int, step: int, num_elements: int = ELEMENTS) -> torch.Tensor:
    return sum(gradient(rank, step, num_elements).double() for rank in range(size))
