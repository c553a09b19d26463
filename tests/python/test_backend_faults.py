"""A rank that dies, stops, or goes elsewhere: the others get an error that names it, in time."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import ranks
from checks import finish

WORLD_SIZE = 4
TIMEOUT_S = 5.0
ENV = {"ISTHMUS_NODES": "2x2", "ISTHMUS_MIN_ELEMENTS": "1000", "ISTHMUS_CODEC": "none", "ISTHMUS_LOG": "error"}


def init_with_short_timeout() -> None:
    """Connecting may take longer on a busy machine."""
    ranks.init(timeout_s=60)
    dist.barrier()
    dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu")).set_timeout(
        timedelta(seconds=TIMEOUT_S)
    )


def reduce_scatter(unit: str = "x", numel: int = 4000) -> None:
    with torch.profiler.record_function(f"FSDP::post_backward_reduce ({unit})"):
        dist.reduce_scatter_tensor(torch.empty(numel // WORLD_SIZE), torch.ones(numel))


def all_gather() -> None:
    dist.all_gather_into_tensor(torch.empty(4000), torch.ones(1000))


def all_reduce() -> None:
    dist.all_reduce(torch.ones(10))


def all_reduce_with_a_future() -> None:
    dist.all_reduce(torch.ones(10), async_op=True).get_future().wait()


def asynchronous_reduce_scatter() -> None:
    with torch.profiler.record_function("FSDP::post_backward_reduce (x)"):
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


def die() -> None:
    os._exit(9)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def stay_away() -> None:
    time.sleep(TIMEOUT_S + 4)


def misbehave(
    rank: int, world_size: int, culprit: int, misdeed: Callable[[], None], collective: Callable[[], None]
) -> tuple[str, float, str]:
    """Return the error of the collective that the culprit leaves out, its time, and the error of the next one."""
    init_with_short_timeout()
    for _ in range(3):
        collective()
    if rank == culprit:
        misdeed()
        return "", 0, ""
    start = time.monotonic()
    with pytest.raises(dist.DistBackendError) as first:
        collective()
    seconds = time.monotonic() - start
    with pytest.raises(dist.DistBackendError) as second:
        all_reduce()
    return str(first.value), seconds, str(second.value)


def assert_named(outcomes: list[ranks.Outcome], culprit: int, within_s: float) -> None:
    for outcome in outcomes:
        if outcome.rank == culprit:
            continue
        assert outcome.error is None, outcome.error
        text, seconds, again = outcome.value
        assert f"No word from rank {culprit}: " in text, text
        assert f"failed on rank {outcome.rank}" in text
        assert seconds < within_s
        assert again == text


@pytest.mark.parametrize("collective", [asynchronous_reduce_scatter, all_gather, all_reduce, all_reduce_with_a_future])
def test_a_rank_that_dies_is_named_at_once(collective: Callable[[], None]) -> None:
    outcomes = ranks.run_any(misbehave, WORLD_SIZE, 3, die, collective, env=ENV)
    assert outcomes[3].exit_code == 9
    assert_named(outcomes, 3, within_s=TIMEOUT_S)


@pytest.mark.parametrize("collective", [reduce_scatter, all_reduce])
def test_a_rank_that_stops_is_named_within_the_timeout(collective: Callable[[], None]) -> None:
    outcomes = ranks.run_any(misbehave, WORLD_SIZE, 2, stop, collective, env=ENV, stopped=(2,))
    assert_named(outcomes, 2, within_s=TIMEOUT_S + 3)


def test_the_rank_that_hosts_the_store_stops() -> None:
    outcomes = ranks.run_any(misbehave, WORLD_SIZE, 0, stop, reduce_scatter, env=ENV, stopped=(0,))
    for outcome in outcomes[1:]:
        assert outcome.error is None, outcome.error
        text, seconds, _ = outcome.value
        assert "its host (global rank 0, unless a launcher hosts it)" in text
        assert seconds < TIMEOUT_S + 4


def test_a_rank_that_stays_away_is_named() -> None:
    outcomes = ranks.run_any(misbehave, WORLD_SIZE, 1, stay_away, reduce_scatter, env=ENV)
    assert_named(outcomes, 1, within_s=TIMEOUT_S + 3)


def diverge(rank: int, world_size: int) -> str:
    init_with_short_timeout()
    with pytest.raises(dist.DistBackendError) as error:
        all_gather() if rank == 1 else reduce_scatter("blocks.1")
    return str(error.value)


def test_a_rank_in_another_collective_is_named() -> None:
    texts = ranks.run(diverge, WORLD_SIZE, env=ENV)
    for rank in (0, 2, 3):
        assert "rank 1 was in all-gather #0 of 4000 x Float" in texts[rank], texts[rank]
        assert "reduce-scatter #0 of 4000 x Float of unit blocks.1 failed on rank" in texts[rank]
    assert "rank 0 was in reduce-scatter #0 of 4000 x Float of unit blocks.1" in texts[1]


def gather_another_size(rank: int, world_size: int) -> str:
    init_with_short_timeout()
    own = 1000 if rank != 1 else 1001
    with pytest.raises(dist.DistBackendError) as error:
        dist.all_gather_into_tensor(torch.empty(world_size * own), torch.ones(own))
    return str(error.value)


def test_ranks_of_different_sizes_are_named() -> None:
    texts = ranks.run(gather_another_size, WORLD_SIZE, env=ENV)
    for rank in (0, 2, 3):
        assert "rank 1 was in all-gather #0 of 4004 x Float" in texts[rank], texts[rank]
    assert "rank 0 was in all-gather #0 of 4000 x Float" in texts[1], texts[1]


def wait_for_ever(rank: int, world_size: int) -> None:
    ranks.init(timeout_s=60)
    group = dist.new_group(timeout=timedelta(days=200_000))
    gathered = torch.empty(4000)
    dist.all_gather_into_tensor(gathered, torch.ones(1000), group=group)
    assert torch.all(gathered == 1)
    finish()


def test_a_timeout_that_means_never() -> None:
    ranks.run(wait_for_ever, WORLD_SIZE, env=ENV)


def other_unit(rank: int, world_size: int) -> str:
    init_with_short_timeout()
    with pytest.raises(dist.DistBackendError) as error:
        reduce_scatter("one" if rank < 2 else "other")
    return str(error.value)


def test_packets_of_another_unit_are_refused() -> None:
    for text in ranks.run(other_unit, WORLD_SIZE, env=ENV):
        assert "of unit one" in text
        assert "of unit other" in text


def abort_while_waiting(rank: int, world_size: int) -> tuple[str, float]:
    ranks.init(timeout_s=60)
    reduce_scatter()
    if rank == 3:
        time.sleep(3)
        return "", 0
    backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    threading.Timer(0.5, backend.abort).start()
    start = time.monotonic()
    with pytest.raises(dist.DistBackendError) as error:
        reduce_scatter()
    return str(error.value), time.monotonic() - start


def test_abort_ends_what_is_under_way() -> None:
    results = ranks.run(abort_while_waiting, WORLD_SIZE, env=ENV)
    for text, seconds in results[:3]:
        assert "aborted" in text
        assert seconds < 10


def wait_shortly(rank: int, world_size: int) -> None:
    """A wait that is shorter than the operation gives up; the operation does not."""
    ranks.init(timeout_s=30)
    gathered = torch.zeros(4000)
    reduced = torch.ones(5)
    if rank == 3:
        time.sleep(2)
    works = [
        dist.all_gather_into_tensor(gathered, torch.ones(1000), async_op=True),
        dist.all_reduce(reduced, async_op=True),
    ]
    for work in works:
        if rank != 3:
            assert not work.is_completed()
            with pytest.raises(RuntimeError, match=r"(?i)time"):
                work.wait(timedelta(milliseconds=50))
    for work in works:
        assert work.wait()
    assert torch.all(gathered == 1)
    assert torch.all(reduced == WORLD_SIZE)
    dist.barrier()


def test_a_short_wait_does_not_end_the_operation() -> None:
    ranks.run(wait_shortly, WORLD_SIZE, env=ENV)
