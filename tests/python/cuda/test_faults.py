"""What goes wrong with CUDA tensors: damaged packets, ranks that die or stay away, and ranks without a GPU."""

import contextlib
import ctypes
import os
import re
import signal
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ErrorType

import isthmus
from isthmus.base import native
from isthmus.base.backends import backend_of
from python.cuda import worlds as cuda_worlds
from support import fake_gpu, ranks
from support.limits import OPERATION_S, scaled

pytestmark = [pytest.mark.processes, cuda_worlds.needs_fake_gpu]

WORLD_SIZE = 4
ENV = {
    "ISTHMUS_NODES": "2x2",
    "ISTHMUS_MIN_ELEMENTS": "0",
    "ISTHMUS_LOG": "error",
    "FAKE_NCCL_TIMEOUT_S": f"{scaled(5):.0f}",
}


def reduce_scatter(async_op: bool = False) -> dist.Work | None:
    with isthmus.unit("x"):
        return dist.reduce_scatter_tensor(
            torch.empty(4096, device="cuda"), torch.ones(4 * 4096, device="cuda"), async_op=async_op
        )


def error_within(seconds: float) -> str:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            reduce_scatter()
        except dist.DistBackendError as error:
            return str(error)
        time.sleep(0.05)
    raise AssertionError("no error")


def wait_for_fault() -> None:
    """Call nothing until the watch has found one."""
    backend: Any = dist.group.WORLD._get_backend(torch.device("cuda"))
    deadline = time.monotonic() + scaled(20)
    while backend.get_error() == ErrorType.SUCCESS and time.monotonic() < deadline:
        time.sleep(0.05)


def damaged_packet(rank: int, world_size: int) -> tuple[str, str]:
    """Rank 2 gets a packet that is not what rank 0 sent."""
    ranks.init()
    for _ in range(2):
        reduce_scatter()
    if rank == 2:
        ctypes.CDLL(None).fake_nccl_damage_after(0)
    first = error_within(scaled(20))
    with pytest.raises(dist.DistBackendError) as again:
        dist.all_reduce(torch.ones(3, device="cuda"))
    dist.destroy_process_group()
    return first, str(again.value)


def test_a_damaged_packet_fails_every_rank_and_is_named() -> None:
    outcomes = fake_gpu.run(damaged_packet, WORLD_SIZE, env=ENV)
    first, again = outcomes[2]
    assert "x" in first and "checksum" in first, first
    assert again == first
    for first, _ in outcomes:
        assert "rank 2" in first, outcomes


def failed_tier(rank: int, world_size: int) -> str:
    """NCCL finds an error of rank 1's tier between nodes, beside all calls. Nobody calls anything until it is told."""
    ranks.init()
    reduce_scatter()
    if rank == 1:
        ctypes.CDLL(None).fake_nccl_fail(8)
    wait_for_fault()
    text = error_within(0.1)
    dist.destroy_process_group()
    return text


def test_an_asynchronous_error_of_a_tier_is_found_without_a_call_and_named_on_every_rank() -> None:
    outcomes = fake_gpu.run(failed_tier, WORLD_SIZE, env=ENV)
    assert "failed on rank 1: inter tier, rank 1: an earlier operation: remote error" in outcomes[1], outcomes
    for text in outcomes:
        assert "inter tier, rank 1: an earlier operation: remote error" in text, outcomes


def killed(rank: int, world_size: int) -> str:
    """Rank 3 is killed; what the others should have received of it is what their memory held before."""
    ranks.init()
    for _ in range(2):
        reduce_scatter()
    if rank == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return error_within(scaled(20))


def test_a_killed_rank_is_named_and_not_the_packets_that_it_never_sent() -> None:
    outcomes = fake_gpu.run_any(killed, WORLD_SIZE, env=ENV | {"FAKE_NCCL_TELLS_AFTER_MS": "700"})
    for outcome in outcomes[:3]:
        assert outcome.error is None, outcomes
        first, _, diagnosis = outcome.value.partition(". ")
        # A rank that looks later may hear of another's error before it meets its own.
        told = "an earlier operation: remote error" in first or first.endswith("another rank failed")
        assert told and "packet" not in first and "No word from rank 3" in diagnosis, outcomes
    assert any("an earlier operation: remote error" in outcome.value for outcome in outcomes[:3]), outcomes


def leave_after_gpu_error(rank: int, world_size: int, destroys: bool) -> tuple[str, list[str]]:
    """Rank 1's GPU has failed when all ranks leave, with a word or without; what destroyed groups leave is returned."""
    ranks.init()
    reduce_scatter()
    dist.barrier()
    if rank == 1:
        ctypes.CDLL(None).fake_gpu_fail()
    if not destroys:
        return "", []
    text = ""
    if rank == 1:
        with pytest.raises(dist.DistBackendError) as error:
            dist.destroy_process_group()
        text = str(error.value)
    dist.destroy_process_group()
    names = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            names.append(Path(f"/proc/self/task/{task}/comm").read_text())
    return text, [name for name in names if name.startswith("isthmus")]


def test_groups_are_left_whose_gpu_has_failed() -> None:
    assert fake_gpu.run(leave_after_gpu_error, WORLD_SIZE, False, env=ENV) == [("", [])] * WORLD_SIZE
    outcomes = fake_gpu.run(leave_after_gpu_error, WORLD_SIZE, True, env=ENV)
    assert "failed on rank 1: cuda:0: cudaEventQuery: an illegal memory access" in outcomes[1][0], outcomes
    assert [left for _, left in outcomes] == [[]] * WORLD_SIZE


def failed_gpu(rank: int, world_size: int) -> str:
    """Rank 1's GPU fails when all calls are done; that rank calls nothing any more, and the others wait for it."""
    ranks.init()
    reduce_scatter()
    dist.barrier()
    if rank != 1:
        return error_within(scaled(20))
    ctypes.CDLL(None).fake_gpu_fail()
    wait_for_fault()
    with pytest.raises(dist.DistBackendError) as error:
        reduce_scatter()
    return str(error.value)


def test_a_rank_whose_gpu_has_failed_tells_the_others_without_a_call() -> None:
    outcomes = fake_gpu.run(failed_gpu, WORLD_SIZE, env=ENV)
    for rank, text in enumerate(outcomes):
        who = "failed on rank 1: " if rank == 1 else "rank 1( was in .*)?: "
        assert re.search(who + "cuda:0: cudaEventQuery: an illegal memory access", text), outcomes


def leave_together(store: dist.Store, rank: int, world_size: int) -> None:
    """Wait for all ranks; rank 0, which hosts the store, until they have heard of it."""
    store.set(f"done/{rank}", "")
    # Not within the timeout of the group, which the others need to see that this one stays away.
    store.wait([f"done/{peer}" for peer in range(world_size)], timedelta(seconds=OPERATION_S))
    store.add("left", 1)
    while rank == 0 and store.add("left", 0) < world_size:
        time.sleep(0.05)


def abort_while_stuck(rank: int, world_size: int) -> str:
    """Rank 3 stays away: kernels of the other ranks' tiers spin on their GPUs."""
    ranks.init()
    reduce_scatter()
    dist.all_reduce(torch.ones(3, device="cuda"))
    store = dist.distributed_c10d._get_default_store()
    text = ""
    if rank != 3:
        work = reduce_scatter(async_op=True)
        assert not work.is_completed()
        dist.group.WORLD._get_backend(torch.device("cuda")).abort()
        torch.cuda.synchronize()  # nothing spins any more
        with pytest.raises(dist.DistBackendError) as error:
            work.wait()
        text = str(error.value)
    leave_together(store, rank, world_size)
    return text


def test_an_abort_ends_while_kernels_of_several_communicators_spin() -> None:
    """One communicator after the other it would not: NCCL's abort waits for what spins in the next one."""
    outcomes = fake_gpu.run(abort_while_stuck, WORLD_SIZE, env=ENV | {"FAKE_NCCL_SPINS": "1"})
    for text in outcomes[:3]:
        assert "aborted" in text, outcomes


units: dict[str, Any] = {}


def gather_weights(name: str) -> dist.Work:
    """Begin a gather of a unit's weights, whose second half is for its wait()."""
    if name not in units:
        units[name] = backend_of(None).unit(name)
    with native.load().UnitCall(units[name], in_halves=True):
        return dist.all_gather_into_tensor(
            torch.empty(4 * 4096, device="cuda"), torch.ones(4096, device="cuda"), async_op=True
        )


def call_while_the_host_waits(rank: int, world_size: int) -> str:
    """Rank 3 stays away: rank 1 waits for its header for ever, and calls another collective meanwhile."""
    ranks.init(timeout_s=scaled(20))
    gather_weights("first").wait()
    store = dist.distributed_c10d._get_default_store()
    text = ""
    if rank == 1:
        gather = gather_weights("first")
        errors: list[str] = []

        def wait() -> None:
            try:
                gather.wait()
            except dist.DistBackendError as error:
                errors.append(str(error))

        waiting = threading.Thread(target=wait)
        waiting.start()
        while sys._current_frames()[waiting.ident or 0].f_code is not wait.__code__:
            time.sleep(0.01)
        time.sleep(0.2)  # it is about to wait, or waits
        assert gather_weights("second") is not None
        assert waiting.is_alive() and not errors
        dist.group.WORLD._get_backend(torch.device("cuda")).abort()
        waiting.join()
        (text,) = errors
    leave_together(store, rank, world_size)
    return text


def test_others_call_collectives_while_the_host_waits_for_headers() -> None:
    env = ENV | {"ISTHMUS_WEIGHTS": "delta", "FAKE_NCCL_SPINS": "1"}
    assert "aborted" in fake_gpu.run(call_while_the_host_waits, WORLD_SIZE, env=env)[1]


def hang(rank: int, world_size: int) -> str:
    """Rank 3 stays away; the other ranks' hosts wait for their GPUs, or NCCL blocks them in the call."""
    ranks.init(timeout_s=scaled(8))
    reduce_scatter()
    dist.barrier()
    store = dist.distributed_c10d._get_default_store()
    text = ""
    if rank != 3:
        with contextlib.suppress(dist.DistBackendError):
            reduce_scatter()
            torch.cuda.synchronize()  # until the watch aborts: else torch's watchdog ends the process
        text = error_within(scaled(20))
    leave_together(store, rank, world_size)
    return text


@pytest.mark.parametrize("where", [{"FAKE_NCCL_SPINS": "1"}, {"FAKE_NCCL_TIMEOUT_S": f"{scaled(30):.0f}"}])
def test_a_hang_is_explained_before_the_watchdog_of_nccl_ends_the_process(where: dict[str, str]) -> None:
    outcomes = fake_gpu.run(hang, WORLD_SIZE, env=ENV | where)
    for text in outcomes[:3]:
        # Rank 3 reports what it did last if it looks at the board in time, and nothing else.
        assert re.search(r"No word from rank 3|rank 3 was in reduce-scatter #\d", text), outcomes
    assert any("not done after" in text for text in outcomes[:3]), outcomes


def no_gpu(rank: int, world_size: int) -> tuple[str, list[float]]:
    os.environ["FAKE_GPU_COUNT"] = "0" if rank == 1 else "1"
    ranks.init()
    text = ""
    if rank != 1:
        with pytest.raises((RuntimeError, ValueError)) as error:
            dist.all_reduce(torch.ones(3, device="cuda"))
        text = str(error.value)
    on_cpu = torch.ones(3)
    dist.all_reduce(on_cpu)
    dist.destroy_process_group()
    return text, on_cpu.tolist()


def test_where_a_rank_has_no_gpu_the_group_is_for_cpu_tensors() -> None:
    outcomes = fake_gpu.run(no_gpu, WORLD_SIZE, env=ENV)
    for rank, (text, on_cpu) in enumerate(outcomes):
        assert on_cpu == [4.0] * 3
        assert rank == 1 or "rank 1: torch sees no GPU" in text, text


def leave(rank: int, world_size: int, how: str) -> Any:
    """Works are under way, and a group is left."""
    store = ranks.store()
    ranks.init(store=dist.PrefixStore("first", store))
    reduce_scatter()
    work = reduce_scatter(async_op=True)
    if how == "destroy":
        dist.destroy_process_group()
        work.wait()
        ranks.init(store=dist.PrefixStore("again", store))
        reduce_scatter()
        dist.destroy_process_group()
    if how == "abort":
        dist.barrier()
        dist.distributed_c10d._abort_process_group()
        del work
    return how  # or leave without a word


def test_a_group_is_left_by_an_abort() -> None:
    assert fake_gpu.run(leave, WORLD_SIZE, "abort", env=ENV) == ["abort"] * WORLD_SIZE


@pytest.mark.parametrize("how", ["destroy", "exit"])
def test_a_group_is_left_while_graphs_refer_to_its_communicators(how: str) -> None:
    # A rank that waits for its communicators in vain, for five seconds, lets the others wait for the next ones.
    env = ENV | {"FAKE_NCCL_IN_GRAPHS": "1", "FAKE_NCCL_TIMEOUT_S": f"{scaled(30):.0f}"}
    assert fake_gpu.run(leave, WORLD_SIZE, how, env=env) == [how] * WORLD_SIZE
