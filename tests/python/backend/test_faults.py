"""Ranks that get a signal, end early, die, stop or go elsewhere: the others get an error that names them, in time."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import isthmus
from faults import harness, table
from faults.rows import ROWS, Row
from support import ranks
from support.limits import OPERATION_S, scaled

ENV = {"ISTHMUS_NODES": "2x2", "ISTHMUS_MIN_ELEMENTS": "0", "ISTHMUS_LOG": "error"}


class Terminated(Exception):
    """What the handler of a signal raises."""


def exact() -> None:
    dist.all_reduce(torch.ones(3))


def two_tier() -> None:
    with isthmus.unit("x"):
        dist.reduce_scatter_tensor(torch.empty(4096), torch.ones(4 * 4096))


def barrier() -> None:
    dist.barrier()


def terminated(rank: int, world_size: int, call: Callable[[], None]) -> str:
    """Rank 3 is silent until rank 1, which waits for it, has handled SIGTERM; rank 1 then leaves, and ends the wait."""
    ranks.init(timeout_s=scaled(30))
    call()
    store = dist.distributed_c10d._get_default_store()
    if rank == 3:
        store.wait(["handled"], timedelta(seconds=OPERATION_S))
        return "silent"

    def handle(number: int, frame: object) -> None:
        raise Terminated

    if rank == 1:
        signal.signal(signal.SIGTERM, handle)
        threading.Timer(1, os.kill, (os.getpid(), signal.SIGTERM)).start()
    try:
        call()
    except Terminated:
        store.set("handled", "")
        return "terminated"
    except dist.DistBackendError as error:
        return str(error)
    return "no error"


@pytest.mark.processes
@pytest.mark.parametrize("call", [exact, two_tier, barrier])
def test_a_handler_runs_while_its_rank_waits(call: Callable[[], None]) -> None:
    outcomes = ranks.run(terminated, 4, call, env=ENV)
    assert (outcomes[1], outcomes[3]) == ("terminated", "silent"), outcomes
    for text in (outcomes[0], outcomes[2]):
        assert "No word from rank" in text or "All ranks reported" in text or "The store" in text, outcomes


def one_ends_early(rank: int, world_size: int, call: Callable[[], None]) -> str:
    ranks.init(timeout_s=scaled(5))
    if rank == 3:
        return "ended"
    try:
        call()
    except dist.DistBackendError as error:
        return str(error)
    return "no error"


@pytest.mark.processes
@pytest.mark.parametrize("call", [exact, two_tier])
def test_ranks_are_told_of_one_that_ended_before_gloo_would_connect_it(call: Callable[[], None]) -> None:
    outcomes = ranks.run(one_ends_early, 4, call, env=ENV | {"TORCH_GLOO_LAZY_INIT": "1"})
    for text in outcomes[:3]:
        assert "No word from rank" in text or "All ranks reported" in text, outcomes


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[list[harness.RankOutcome]]]]:
    selected = [item for item in request.session.items if getattr(item, "originalname", "") == test_fault.__name__]
    with harness.running([item.callspec.params["row"] for item in selected]) as futures:
        yield futures


@pytest.mark.processes
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_fault(row: Row, outcomes: dict[str, Future[list[harness.RankOutcome]]]) -> None:
    assert not (lacking := list(harness.complaints(row, outcomes[row.name].result()))), "\n".join(lacking)


def test_the_page_has_the_rows_of_the_table() -> None:
    (part,) = table.TABLE.findall(table.PAGE.read_text())
    rows = [line for line in part.splitlines() if line.startswith("| ")][1:]
    assert [tuple(line[2:].split(" | ")[:2]) for line in rows] == [table.begin(row) for row in ROWS]
    assert "not as it has to be" not in part
