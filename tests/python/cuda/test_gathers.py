"""Option gathers=auto: on a GPU a gather is tried in two tiers and by the world backend, and the faster way stays."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch
import torch.distributed as dist

import isthmus
from python.cuda import worlds as cuda_worlds
from support import fake_gpu, ranks
from support.checks import Table, World, finish

pytestmark = [pytest.mark.processes, cuda_worlds.needs_fake_gpu]

WORLD_SIZE = 4
OF_TIERS, OF_WORLD = 2, 4
# Gathers on the fake GPU take a millisecond; on a busy machine the shortest of three stays far below this.
DELAY_US = 200_000
table = Table()


class Slow:
    """While it lasts operations of communicators of that size take longer."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __enter__(self) -> None:
        ctypes.CDLL(None).fake_nccl_delay(self.size, ctypes.c_int64(DELAY_US))

    def __exit__(self, *_: object) -> None:
        ctypes.CDLL(None).fake_nccl_delay(0, ctypes.c_int64(0))


def new_group(**options: Any) -> dist.ProcessGroup:
    settings = isthmus.Options(nodes="2x2", min_elements=0, **options)
    return dist.new_group(backend="isthmus", pg_options=settings)


def gather(group: dist.ProcessGroup, numel: int = 1001, device: str = "cuda") -> None:
    own = torch.arange(numel, dtype=torch.float32) + 10_000 * dist.get_rank()
    result = torch.empty(WORLD_SIZE * numel, device=device)
    dist.all_gather_into_tensor(result, own.to(device), group=group)
    expected = torch.cat([torch.arange(numel, dtype=torch.float32) + 10_000 * rank for rank in range(WORLD_SIZE)])
    assert torch.equal(result.cpu(), expected)


def calls_in_tiers(group: dist.ProcessGroup) -> int:
    calls: int = isthmus.stats(group)["collectives"]["all_gather"]["calls"]
    return calls


def trials(group: dist.ProcessGroup) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = isthmus.stats(group)["gather_trials"]
    return found


def ways(group: dist.ProcessGroup) -> list[tuple[int, str, int]]:
    return [(trial["max_bytes"], trial["by"], trial["calls"]) for trial in trials(group)]


@table
def tiers_stay_where_the_world_backend_is_slower() -> None:
    group = new_group()
    with Slow(OF_WORLD):
        gather(group)
    assert ways(group) == [(16384, "tiers", 1)]
    assert trials(group)[0]["tiers_s"] < DELAY_US / 1e6 < trials(group)[0]["world_s"]
    before = calls_in_tiers(group)
    gather(group)
    assert calls_in_tiers(group) == before + 1
    assert ways(group) == [(16384, "tiers", 2)]


@table
def the_world_backend_gathers_where_it_is_faster() -> None:
    group = new_group()
    with Slow(OF_TIERS):
        gather(group)
    assert trials(group)[0]["world_s"] < DELAY_US / 1e6 < trials(group)[0]["tiers_s"]
    before = calls_in_tiers(group)
    gather(group)
    assert calls_in_tiers(group) == before > 0  # what was tried
    assert ways(group) == [(16384, "world", 2)]
    isthmus.reset_stats(group)
    gather(group)
    assert ways(group) == [(16384, "world", 1)]  # what was found stays
    assert calls_in_tiers(group) == 0


@table
def each_size_is_tried_once() -> None:
    """Sizes up to a power of two are one. All ranks find the same, whatever each measured."""
    group = new_group()
    for numel in (1024, 1, 1025, 600, 513, 2048):
        gather(group, numel)
    found = [(bytes_, calls) for bytes_, _, calls in ways(group)]
    assert found == [(16, 1), (16384, 3), (32768, 2)]
    everyone: list[Any] = [None] * WORLD_SIZE
    dist.all_gather_object(everyone, trials(group), group=group)
    assert everyone == [trials(group)] * WORLD_SIZE


@table
def a_group_is_told_which_way_to_go() -> None:
    for gathers in ("tiers", "world"):
        group = new_group(gathers=gathers)
        gather(group)
        assert trials(group) == []
        assert calls_in_tiers(group) == (gathers == "tiers")


@table
def nothing_is_tried_on_the_cpu() -> None:
    group = new_group()
    gather(group, device="cpu")
    assert trials(group) == []
    assert calls_in_tiers(group) == 1


@table
def nothing_is_tried_while_torch_coalesces() -> None:
    group = new_group()
    own, result = torch.ones(100, device="cuda"), torch.empty(400, device="cuda")
    with dist._coalescing_manager(group, torch.device("cuda")):
        dist.all_gather_into_tensor(result, own, group=group)
    assert bool((result.cpu() == 1).all())
    assert trials(group) == []
    assert calls_in_tiers(group) == 1


@table
def small_gathers_are_the_world_backends() -> None:
    group = dist.new_group(backend="isthmus", pg_options=isthmus.Options(nodes="2x2", min_elements=4004))
    gather(group, 1000)
    assert trials(group) == []
    gather(group, 1001)
    assert len(trials(group)) == 1


@table
def a_gather_in_place_is_tried() -> None:
    """As FSDP2's: the own shard lies in the result."""
    group = new_group()
    result = torch.zeros(400, device="cuda")
    own = result[100 * dist.get_rank() : 100 * (dist.get_rank() + 1)]
    own.fill_(dist.get_rank())
    for _ in range(2):
        dist.all_gather_into_tensor(result, own, group=group)
        assert torch.equal(result.cpu(), torch.arange(4.0).repeat_interleave(100))
    assert len(trials(group)) == 1


def main(rank: int, world_size: int) -> dict[str, str]:
    ranks.init()
    failures = table.run_on_this_rank()
    finish()
    return failures


@pytest.fixture(scope="module")
def world() -> World:
    return World(main, WORLD_SIZE, run=fake_gpu.run, env={"ISTHMUS_LOG": "error", "ISTHMUS_NODES": "2x2"})


@pytest.mark.parametrize("name", table.names)
def test_gathers(world: World, name: str) -> None:
    world.check(name)
