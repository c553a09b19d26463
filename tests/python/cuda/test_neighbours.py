"""What a group leaves to its neighbours on the GPU: memory, multiprocessors, queues."""

from __future__ import annotations

import logging
import threading
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import isthmus
from isthmus import native
from isthmus.group import cuda
from python.cuda import worlds as cuda_worlds
from support import fake_gpu, ranks

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


def multiprocessors(rank: int, world_size: int) -> list[Any]:
    ranks.init()
    store = dist.distributed_c10d._get_default_store()
    group = cuda.NcclGroup(store, "group", rank, range(world_size), timedelta(seconds=60))
    found = []

    class Core:
        INTRA_MAX_CTAS = native.load().INTRA_MAX_CTAS
        INTER_MAX_CTAS = native.load().INTER_MAX_CTAS

        @staticmethod
        def CudaParts(**parts: Any) -> None:
            found.extend((name, part.options.config.max_ctas) for name, part in parts.items() if part is not None)

    cuda.make_parts(group, Core, rank // 2, [rank // 2 * 2, rank // 2 * 2 + 1], [rank % 2, rank % 2 + 2], None)
    dist.destroy_process_group()
    return found


@pytest.mark.processes
@cuda_worlds.needs_fake_gpu
def test_tiers_leave_multiprocessors_to_the_world() -> None:
    for parts in fake_gpu.run(multiprocessors, WORLD_SIZE, env=ENV):
        tiers = dict(parts)
        assert tiers.pop("world") < 0  # NCCL's choice
        assert tiers == {"intra": 16, "inter": 8, "gather_intra": 16, "gather_inter": 8}


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
    texts: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            texts.append(record.getMessage())

    logging.getLogger("isthmus").addHandler(Listener())
    ranks.init()
    dist.new_group()
    return [text for text in texts if cuda.CONNECTIONS in text]


@pytest.mark.processes
@cuda_worlds.needs_fake_gpu
def test_warns_once_where_all_streams_share_a_queue() -> None:
    first, second = fake_gpu.run(one_connection, 2, env={cuda.CONNECTIONS: "1"})
    assert len(first) == 1 and "one queue" in first[0]
    assert second == []
