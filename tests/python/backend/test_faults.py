"""A rank that dies, stops, or goes elsewhere: the others get an error that names it, in time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import isthmus
from faults import harness, table
from faults.rows import ROWS, TIMEOUT_S, Row
from support import ranks
from support.limits import scaled

WORLD_SIZE = 4
ENV = {"ISTHMUS_NODES": "2x2", "ISTHMUS_MIN_ELEMENTS": "1000", "ISTHMUS_CODEC": "none", "ISTHMUS_LOG": "error"}


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
    rows = [line for line in table.PAGE.read_text().splitlines() if line.startswith("| ")][1:]
    assert [tuple(line[2:].split(" | ")[:2]) for line in rows] == [table.begin(row) for row in ROWS]
    assert all(line.endswith(" | yes |") for line in rows)


def init_with_short_timeout() -> None:
    """Connecting may take longer on a busy machine."""
    ranks.init()
    dist.barrier()
    dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu")).set_timeout(
        timedelta(seconds=scaled(TIMEOUT_S))
    )


def reduce_scatter() -> None:
    with isthmus.unit("x"):
        dist.reduce_scatter_tensor(torch.empty(1000), torch.ones(4000))


def all_reduce_with_a_future() -> None:
    dist.all_reduce(torch.ones(10), async_op=True).get_future().wait()


def asynchronous_reduce_scatter() -> None:
    with isthmus.unit("x"):
        work = dist.reduce_scatter_tensor(torch.empty(1000), torch.ones(4000), async_op=True)
    future = work.get_future()
    try:
        work.wait()
    except dist.DistBackendError:
        assert work.is_completed()
        assert not work.is_success()
        with pytest.raises(RuntimeError, match=r"No word from rank"):
            future.wait()
        raise


def die(rank: int, world_size: int, collective: Callable[[], None]) -> tuple[str, str]:
    """Return the error of the collective before which rank 3 dies, and that of the next one."""
    init_with_short_timeout()
    for _ in range(3):
        collective()
    if rank == 3:
        os._exit(9)
    with pytest.raises(dist.DistBackendError) as first:
        collective()
    with pytest.raises(dist.DistBackendError) as second:
        dist.all_reduce(torch.ones(10))
    return str(first.value), str(second.value)


@pytest.mark.processes
@pytest.mark.parametrize("collective", [asynchronous_reduce_scatter, all_reduce_with_a_future])
def test_works_and_futures_name_a_rank_that_died(collective: Callable[[], None]) -> None:
    outcomes = ranks.run_any(die, WORLD_SIZE, collective, env=ENV)
    assert outcomes[3].exit_code == 9
    for outcome in outcomes[:3]:
        assert outcome.error is None, outcome.error
        text, again = outcome.value
        assert "No word from rank 3: " in text, text
        assert f"failed on rank {outcome.rank}" in text
        assert again == text
