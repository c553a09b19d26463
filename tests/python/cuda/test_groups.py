"""Groups on GPUs: which ranks have one, what the log says, and what is left to neighbours: memory, queues."""

import json
import logging
import os
import threading
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import isthmus
from gpu.counts.chain import Counts
from isthmus.base.backends import companion_of
from isthmus.group import cuda, register
from isthmus.group.agreement import Introduction
from isthmus.group.cuda import Gpu
from isthmus.group.nodes.node_map import told_by_ranks
from isthmus.torch_private.groups import make_nccl
from python.cuda import worlds as cuda_worlds
from support import fake_gpu, ranks
from support.logs import logged
from support.machines import eight_gpus

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


@cuda_worlds.on_fake_gpu
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


@cuda_worlds.on_fake_gpu
def test_memory_of_a_copy_is_not_used_again_before_the_waiting_stream_is_done() -> None:
    for pending_bytes in fake_gpu.run(waiting_stream, WORLD_SIZE, env=ENV):
        assert pending_bytes >= 4 * 4096


def communicators(rank: int, world_size: int) -> list[list[tuple[int, int]]]:
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


@cuda_worlds.on_fake_gpu
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


@cuda_worlds.on_fake_gpu
def test_warns_once_where_all_streams_share_a_queue() -> None:
    first, second = fake_gpu.run(one_connection, 2, env={cuda.CONNECTIONS: "1"})
    assert len(first) == 1 and "one queue" in first[0]
    assert second == []


def attached(rank: int, world_size: int) -> tuple[list[Any], list[float]]:
    """Train a step, and reduce a few values over the companion: an exact call."""
    ranks.init("nccl")
    model = nn.Linear(64, 64, bias=False, device="cuda")
    fully_shard(model)
    isthmus.attach(model, nodes="2x3", min_elements=256)
    counts = Counts()
    model(torch.ones(1, 64, device="cuda")).sum().backward()
    small = torch.ones(world_size, device="cuda")
    dist.all_reduce(small, group=companion_of(dist.group.WORLD))
    made = sorted(counts.take()["communicators"])
    isthmus.detach(model)
    dist.all_reduce(small)  # the group's own backend is as it was
    dist.destroy_process_group()
    return made, small.tolist()


@cuda_worlds.on_fake_gpu
def test_exact_calls_of_a_companion_go_to_the_group_beside_it() -> None:
    for made, small in fake_gpu.run(attached, 6):
        assert [size for size, _ in made] == [2, 2, 3, 3, 6], made  # tiers, those of gathers, and the group's own
        assert small == [36.0] * 6


def log_of_rank(rank: int, world_size: int, files: list[str]) -> list[str]:
    os.environ["HWLOC_XMLFILE"] = files[rank // 2]
    torch.cuda.set_device(rank % 2)
    with logged(logging.INFO) as messages:
        dist.init_process_group("isthmus")
        dist.barrier()
        dist.destroy_process_group()
    return messages


@cuda_worlds.on_fake_gpu
def test_two_nodes_whose_rails_differ(tmp_path: Path) -> None:
    order = [f"mlx5_{number}" for number in range(8)]
    crossed = [order[0], "mlx5_2", "mlx5_1", *order[3:]]
    files = [eight_gpus(tmp_path / f"{number}.xml", nics) for number, nics in enumerate((order, crossed))]
    env = {"FAKE_GPU_COUNT": "2", "ISTHMUS_NODES": "2x2", "ISTHMUS_LOG": "info"}
    messages, *others = fake_gpu.run(log_of_rank, 4, files, env=env)
    assert messages[0] == (
        "group of 4 ranks: 2 nodes x 2 ranks, in blocks, by ISTHMUS_NODES; a node has 8 x NVIDIA A100-SXM4-80GB, NV12 "
        "between all GPUs, 2400 Gbit/s a pair; rails leave by mlx5_0 (speed unknown), mlx5_1 (speed unknown)"
    )
    assert messages[1].startswith("rails differ between nodes: rank 1 leaves by mlx5_1, and rank 3 by mlx5_2: set ")
    assert not any(message.startswith(("group of", "rails differ")) for log in others for message in log)


#: Of each rank, by the way in which it takes one.
GPUS = {"one for all": [0, 0, 0, 0], "LOCAL_RANK's": [0, 1, 0, 1], "device_id's": [0, 0, 1, 1]}


def broadcast_by(way: str, rank: int, store: dist.Store, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Tell of a broadcast by groups whose ranks take their GPUs in one way, and of their kinds and devices."""
    device = torch.device("cuda", GPUS[way][rank])
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if way != "device_id's":
        monkeypatch.setenv("LOCAL_RANK", str(device.index))
    kinds = []

    def make(*arguments: Any) -> Any:
        made = make_nccl(*arguments)
        kinds.append(f"{type(made).__name__} on {made.bound_device_id}")
        return made

    monkeypatch.setattr(register, "make_nccl", make)
    torch.cuda.set_device(device)
    device_id = device if way == "device_id's" else None
    ranks.init(store=dist.PrefixStore(way, store), device_id=device_id)
    said = []
    for group in (dist.group.WORLD, dist.new_group()):
        sent = torch.tensor([rank], device=device)
        dist.broadcast(sent, 3, group=group)
        said.append(sent.item())
    dist.destroy_process_group()
    return said + kinds


def broadcast(rank: int, world_size: int) -> dict[str, tuple[list[Any], list[str]]]:
    found = {}
    store = ranks.store()
    for way in GPUS:
        with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            said = broadcast_by(way, rank, store, patch)
        found[way] = said, [str(warning.message) for warning in warned if "timeout" in str(warning.message)]
    return found


@cuda_worlds.on_fake_gpu
@pytest.mark.parametrize("asked", ["", "0"])
def test_both_kinds_of_torchs_nccl_are_world_backends(asked: str) -> None:
    env = {"FAKE_GPU_COUNT": "2", "ISTHMUS_NODES": "2x2"} | ({"TORCH_DIST_USE_NCCL2": asked} if asked else {})
    for rank, found in enumerate(fake_gpu.run(broadcast, WORLD_SIZE, env=env)):
        for way, gpus in GPUS.items():
            if hasattr(dist, "ProcessGroupNCCL2") and not asked:
                kind = f"ProcessGroupNCCL2 on cuda:{gpus[rank]}"
            else:  # which is bound to none
                kind = "ProcessGroupNCCL on None"
            assert found[way] == ([3, 3, kind, kind], []), way


HAS = Gpu(bus_id="0000:07:00.0")
NONE = Gpu(missing="torch sees no GPU")
OTHER_BUILD = Gpu(missing="isthmus was built without CUDA")


@pytest.mark.parametrize(
    ("gpus", "reason"),
    [
        ([HAS, HAS, Gpu()], ""),
        ([NONE, NONE, NONE], "torch sees no GPU"),
        ([HAS, NONE, HAS], "rank 5: torch sees no GPU"),
        ([NONE, OTHER_BUILD, NONE], "ranks 3, 9: torch sees no GPU; rank 5: isthmus was built without CUDA"),
    ],
)
def test_all_or_no_ranks_take_cuda_tensors(gpus: list[Gpu], reason: str) -> None:
    assert told_by_ranks([3, 5, 9], [gpu.missing for gpu in gpus]) == reason


def test_an_introduction_names_the_gpu() -> None:
    assert Introduction.from_text(json.dumps(asdict(Introduction(gpu=HAS))).encode()).gpu == HAS


def test_a_process_without_a_gpu_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cuda.find_gpu() in (NONE, OTHER_BUILD)
