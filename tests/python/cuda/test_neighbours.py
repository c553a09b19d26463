"""What a group leaves to its neighbours on the GPU: memory, multiprocessors, queues."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import isthmus
from gpu.counts.chain import Counts
from isthmus.group import cuda
from python.cuda import worlds as cuda_worlds
from support import fake_gpu, ranks
from support.logs import logged

WORLD_SIZE = 4
ENV = {"ISTHMUS_NODES": "2x2", "ISTHMUS_MIN_ELEMENTS": "0"}


def other_device(rank: int, world_size: int) -> bool:
    """A thread that has no device of its own asks for a Work."""
    torch.cuda.set_device(1)
    ranks.init()
    with isthmus.unit("x"):
        work = dist.reduce_scatter_tensor(
            torch.empty(4096, device="cuda"), torch.ones(4 * 4096, device="cuda"), async_op=True
        )
    thread = threading.Thread(target=work.is_completed)
    thread.start()
    thread.join()
    work.wait()
    dist.destroy_process_group()
    return bool(torch._C._cuda_hasPrimaryContext(0))


@pytest.mark.processes
@cuda_worlds.needs_fake_gpu
def test_no_context_is_made_on_a_gpu_of_others() -> None:
    assert fake_gpu.run(other_device, WORLD_SIZE, env=ENV | {"FAKE_GPU_COUNT": "2"}) == [False] * WORLD_SIZE


def waiting_stream(rank: int, world_size: int) -> int:
    """A Work is waited for on another stream than it was issued on, and its copy of the output goes."""
    ranks.init()
    output = torch.empty(4096, 2, device="cuda")[:, 0]
    for _ in range(2):  # the first call allocates what stays
        torch.cuda.synchronize()
        torch.empty(1, device="cuda")  # the allocator looks which streams are done
        with isthmus.unit("x"):
            work = dist.reduce_scatter_tensor(output, torch.ones(4 * 4096, device="cuda"), async_op=True)
        with torch.cuda.stream(torch.cuda.Stream()):
            work.wait()
    stats = torch.cuda.memory_stats()
    return int(stats["active_bytes.all.current"] - stats["allocated_bytes.all.current"])


@pytest.mark.processes
@cuda_worlds.needs_fake_gpu
def test_memory_of_a_copy_is_not_used_again_before_the_waiting_stream_is_done() -> None:
    for pending_bytes in fake_gpu.run(waiting_stream, WORLD_SIZE, env=ENV):
        assert pending_bytes >= 4 * 4096


def communicators(rank: int, world_size: int) -> list[list[tuple[int, int]]]:
    """Size and bound of multiprocessors of the communicators that each call has made."""
    ranks.init(pg_options=isthmus.Options(nodes="2x3"))
    shard, whole = torch.ones(6, device="cuda"), torch.ones(36, device="cuda")

    def reduce() -> None:
        with isthmus.unit("x"):
            dist.reduce_scatter_tensor(shard, whole)

    calls: list[Callable[[], Any]] = [
        reduce,
        lambda: dist.all_gather_into_tensor(whole, shard),
        lambda: dist.all_gather_into_tensor(whole, shard),
        lambda: dist.broadcast(shard, 0),
    ]
    counts = Counts()
    made = []
    for call in calls:
        counts.take()
        call()
        made.append(sorted(map(tuple, counts.take()["communicators"])))
    dist.destroy_process_group()
    return made


@pytest.mark.processes
@cuda_worlds.needs_fake_gpu
def test_communicators_are_made_when_first_used_and_leave_multiprocessors_to_the_world() -> None:
    tiers = [(2, 8), (3, 16)]
    for made in fake_gpu.run(communicators, 6, env={"ISTHMUS_MIN_ELEMENTS": "0"}):
        assert made == [tiers, tiers, [], [(6, 0)]]  # reductions, gathers, none, the world's, of NCCL's choice


@pytest.mark.parametrize(
    ("built", "initialized", "given", "expected"),
    [
        (True, False, None, "32"),
        (True, False, "4", "4"),
        (True, True, None, None),
        (False, False, None, None),
    ],
)
def test_asks_for_connections(
    monkeypatch: pytest.MonkeyPatch, built: bool, initialized: bool, given: str | None, expected: str | None
) -> None:
    environment = {} if given is None else {cuda.CONNECTIONS: given}
    monkeypatch.setattr(cuda.os, "environ", environment)
    monkeypatch.setattr(cuda, "_built_with_cuda", lambda: built)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: initialized)
    cuda.ask_for_connections()
    assert environment.get(cuda.CONNECTIONS) == expected
    assert cuda.connections_warning() == ""


def one_connection(rank: int, world_size: int) -> list[str]:
    with logged() as texts:
        ranks.init()
        dist.new_group()
    return [text for text in texts if cuda.CONNECTIONS in text]


@pytest.mark.processes
@cuda_worlds.needs_fake_gpu
def test_warns_once_where_all_streams_share_a_queue() -> None:
    first, second = fake_gpu.run(one_connection, 2, env={cuda.CONNECTIONS: "1"})
    assert len(first) == 1 and "one queue" in first[0]
    assert second == []
