"""The fake GPU and NCCL of tests/fake_gpu themselves, under torch's own backend for NCCL."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from python.cuda import collectives as cuda_collectives
from support import fake_gpu, ranks
from support.checks import Table, World, finish
from support.limits import scaled

WORLD_SIZE = 4
DEVICE = torch.device("cuda", 0)
table = Table()

pytestmark = [pytest.mark.processes, pytest.mark.skipif(bool(fake_gpu.why_not()), reason=fake_gpu.why_not())]


@table
def memory_streams_and_events(gloo: dist.ProcessGroup) -> None:
    assert torch.cuda.is_available() and torch.cuda.device_count() == 1
    side = torch.cuda.Stream()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    with torch.cuda.stream(side):
        tensor = torch.arange(8.0, device=DEVICE)
        end.record()
    torch.cuda.current_stream().wait_stream(side)
    tensor.record_stream(torch.cuda.current_stream())
    assert tensor.cpu().tolist() == list(range(8))
    assert begin.query() and begin.elapsed_time(end) >= 0
    assert tensor.pin_memory is not None and torch.empty(4).pin_memory().is_pinned()
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 40, device=DEVICE)


@table
def kernels_of_torch_run_on_the_host(gloo: dist.ProcessGroup) -> None:
    torch.manual_seed(0)
    on_host = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
    on_device = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)).to(DEVICE)
    on_device.load_state_dict(on_host.state_dict())
    for model, device in ((on_host, "cpu"), (on_device, DEVICE)):
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        for step in range(3):
            values = torch.arange(16.0).reshape(2, 8).to(device) + step
            model(values).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    for host, device in zip(on_host.parameters(), on_device.parameters(), strict=True):
        assert torch.equal(host, device.cpu())


@table
def subgroups_and_splits(gloo: dist.ProcessGroup) -> None:
    rank = dist.get_rank()
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    tensor = cuda_collectives.data(DEVICE, 3)
    dist.all_reduce(tensor, group=halves[rank // 2])
    pair = [0, 1] if rank < 2 else [2, 3]
    expected = sum(data_of(peer, 3) for peer in pair)
    assert torch.equal(tensor.cpu(), expected)
    split = dist.split_group(split_ranks=[[0, 2], [1, 3]])
    tensor = cuda_collectives.data(DEVICE, 3)
    dist.all_reduce(tensor, group=split)
    assert torch.equal(tensor.cpu(), data_of(rank % 2, 3) + data_of(rank % 2 + 2, 3))


def data_of(rank: int, count: int) -> torch.Tensor:
    return torch.randint(0, 8, (count,), generator=torch.Generator().manual_seed(rank)).float()


@table
def sums_of_short_types_are_rounded_once(gloo: dist.ProcessGroup) -> None:
    for dtype, little in ((torch.bfloat16, 2.0**-8), (torch.float16, 2.0**-11)):
        # One and three halves of its last place: lost one by one, seen together.
        tensor = torch.full((4,), 1.0 if dist.get_rank() == 0 else little, dtype=dtype, device=DEVICE)
        dist.all_reduce(tensor)
        assert torch.equal(tensor.cpu(), torch.tensor([1 + 3 * little] * 4).to(dtype))


@table
def premul_sum(gloo: dist.ProcessGroup) -> None:
    tensor = cuda_collectives.data(DEVICE, 12)
    dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.25))
    assert torch.equal(tensor.cpu(), sum(data_of(rank, 12) for rank in range(WORLD_SIZE)) / 4)
    tensor = cuda_collectives.data(DEVICE, 12)
    dist.all_reduce(tensor, dist.ReduceOp.AVG)
    assert torch.equal(tensor.cpu(), sum(data_of(rank, 12) for rank in range(WORLD_SIZE)) / 4)


for collective in cuda_collectives.CALLS:
    table.checks[collective] = lambda gloo, name=collective: cuda_collectives.compare(name, None, gloo)


def main(rank: int, world_size: int) -> dict[str, str]:
    ranks.init("nccl", device_id=DEVICE)
    failures = table.run_on_this_rank(dist.new_group(backend="gloo"))
    finish()
    return failures


@pytest.fixture(scope="module")
def world() -> World:
    return World(main, WORLD_SIZE, run=fake_gpu.run)


@pytest.mark.parametrize("name", table.names)
def test_fake(world: World, name: str) -> None:
    world.check(name)


def symbols(prefix: str, which: str, library: Path) -> set[str]:
    """Which: what nm calls "--undefined-only" or "--defined-only"."""
    said = subprocess.run(["nm", "-D", which, str(library)], capture_output=True, text=True, check=True).stdout
    return {name for line in said.splitlines() if (name := line.split()[-1].partition("@")[0]).startswith(prefix)}


@pytest.mark.parametrize(("prefix", "known"), [("nccl", "ncclAllReduce"), ("cupti", "cuptiSubscribe")])
def test_no_call_of_torch_reaches_the_real_library(prefix: str, known: str) -> None:
    """It would take the fake's handles for its own, or ask for a driver. Newer torch calls more of it."""
    libraries = Path(torch.__file__).parent.glob("lib/libtorch_*.so")
    called = set().union(*(symbols(prefix, "--undefined-only", library) for library in libraries))
    assert known in called
    assert not called - symbols(prefix, "--defined-only", fake_gpu.library())


# --- what goes wrong


def different_counts(rank: int, world_size: int) -> None:
    ranks.init("nccl")
    dist.all_reduce(torch.ones(3 + rank, device=DEVICE))


def test_ranks_that_disagree_end(capfd: Any) -> None:
    outcomes = fake_gpu.run_any(different_counts, 2)
    assert all(outcome.exit_code != 0 for outcome in outcomes)
    assert "runs AllReduce (number 1, 4 elements" in capfd.readouterr().out


def one_is_missing(rank: int, world_size: int) -> str:
    ranks.init("nccl")
    dist.all_reduce(torch.ones(3, device=DEVICE))
    if rank == 1:
        time.sleep(scaled(5))  # it lives, and does not come
        return ""
    with pytest.raises(RuntimeError, match="timeout"):  # torch 2.15: no DistBackendError
        dist.all_reduce(torch.ones(3, device=DEVICE))
    return "timed out"


def test_waits_for_a_missing_rank_are_bounded() -> None:
    outcomes = fake_gpu.run_any(one_is_missing, 2, env={"FAKE_NCCL_TIMEOUT_S": f"{scaled(2):.0f}"})
    assert outcomes[0].value == "timed out", outcomes
