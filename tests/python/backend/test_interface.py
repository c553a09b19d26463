"""What torch and its users expect of a backend beside the collectives."""

import json
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch._C._distributed_c10d import _dump_fr_trace_json, _get_work_registry_size
from torch.profiler import ProfilerActivity, profile

import isthmus
from support.checks import Table

WORLD_SIZE = 4
ELEMENTS = 8192
CPU = torch.device("cpu", 0)
# What a rank keeps of a timeout, so that an error has time to name who is missing.
REPORT_S = 2
table = Table()


def backend_of(group: dist.ProcessGroup) -> Any:
    return group._get_backend(torch.device("cpu"))


def make_group(backend: str = "isthmus", **arguments: Any) -> dist.ProcessGroup:
    group = dist.new_group(backend=backend, **arguments)
    assert isinstance(group, dist.ProcessGroup)
    return group


def gradient(group: dist.ProcessGroup, **arguments: Any) -> dist.Work | None:
    with isthmus.unit("x"):
        return dist.reduce_scatter_tensor(
            torch.empty(ELEMENTS), torch.ones(WORLD_SIZE * ELEMENTS), group=group, **arguments
        )


def large_all_gather(group: dist.ProcessGroup) -> None:
    dist.all_gather_into_tensor(torch.empty(WORLD_SIZE * ELEMENTS), torch.ones(ELEMENTS), group=group)


@table
def works_under_way_leave_torchs_table_when_they_are_waited_for() -> None:
    group = make_group()
    # The table forgets tensors that nobody else holds.
    number, shard, gathered = torch.ones(2), torch.ones(ELEMENTS), torch.ones(WORLD_SIZE * ELEMENTS)
    calls: list[Callable[[], Any]] = [
        lambda: dist.reduce_scatter_tensor(shard, gathered, group=group, async_op=True),
        lambda: dist.all_reduce(number, group=group, async_op=True),
        lambda: dist.all_gather_into_tensor(gathered, shard, group=group, async_op=True),
        lambda: group.allreduce_coalesced([number, shard]),
    ]
    sizes = []
    with isthmus.unit("x"), funcol.allow_inflight_collective_as_graph_input_ctx():
        for call in calls:
            work = call()
            sizes.append(_get_work_registry_size())
            work.wait()
            sizes.append(_get_work_registry_size())
    assert sizes == [1, 0, 1, 0, 1, 0, 2, 0]  # of each tensor


@table
def messages_of_callers_pass_those_of_tiers() -> None:
    group = make_group()
    rank, peer = dist.get_rank(), dist.get_rank() ^ 2  # on the other node
    work = gradient(group, async_op=True)
    for tag in (0, (1 << 31) - (1 << 24) - 2):  # the lowest and the highest
        sent, arrived = torch.full((3,), float(rank)), torch.empty(3)
        sending = dist.isend(sent, group=group, group_dst=peer, tag=tag)
        assert dist.recv(arrived, group=group, tag=tag) == peer  # from anybody
        assert torch.equal(arrived, torch.full((3,), float(peer)))
        assert sending is not None
        sending.wait()
    assert work is not None
    work.wait()
    for call in (dist.isend, dist.irecv):
        with pytest.raises(ValueError, match=r"tag 2130706431: expected 0 to 2130706430"):
            call(torch.ones(3), peer, group=group, tag=(1 << 31) - (1 << 24) - 1)


@table
def sequence_numbers_count_collectives_of_both_paths() -> None:
    group = make_group()
    backend = backend_of(group)
    calls: list[Callable[[], Any]] = [
        lambda: dist.all_reduce(torch.ones(2), group=group),
        lambda: large_all_gather(group),
        lambda: gradient(group),
        lambda: dist.barrier(group),
    ]
    for number, call in enumerate(calls):
        assert backend._get_sequence_number_for_group() == number
        call()
    works = [gradient(group, async_op=True), dist.all_reduce(torch.ones(2), group=group, async_op=True)]
    for work in works:
        assert work is not None
        work.wait()
    if dist.get_rank() < 2:  # messages between two ranks are not the group's
        operation = dist.send if dist.get_rank() == 0 else dist.recv
        operation(torch.ones(1), 1 - dist.get_rank(), group=group)
    backend.begin_step()
    backend.skip_step()
    assert backend._get_sequence_number_for_group() == len(calls) + len(works)


@table
def abilities_are_those_of_the_world_backend() -> None:
    gloo = backend_of(make_group("gloo"))
    ours = backend_of(make_group())
    calls: list[Callable[[Any], Any]] = [
        lambda backend: backend.supports_tensor_alloc(CPU),
        lambda backend: backend.allocate_tensor(8, dtype=torch.float32, device=CPU),
        lambda backend: backend.mem_allocator,
        estimates_time,
        lambda backend: backend.supports_coalescing,
        lambda backend: backend.eager_connect_single_device(CPU),
    ]
    for call in calls:
        assert outcome(call, ours) == outcome(call, gloo)
    dist.group.WORLD.monitored_barrier(wait_all_ranks=True)  # type: ignore[union-attr]


def estimates_time(backend: Any) -> bool:
    """Torch 2.15 has given the property an underscore."""
    public = hasattr(backend, "supports_time_estimate")
    return bool(backend.supports_time_estimate if public else backend._supports_time_estimate)


def outcome(call: Callable[[Any], Any], backend: Any) -> Any:
    try:
        return call(backend)
    except RuntimeError as error:
        return str(error).splitlines()[0]


@table
def a_backend_that_has_ended_says_so() -> None:
    for way, text in (("shutdown", "shut down"), ("abort", "aborted")):
        group = make_group()
        backend = backend_of(group)
        large_all_gather(group)
        dist.barrier()
        for _ in range(2):
            getattr(backend, way)()
        if way == "shutdown":
            assert not estimates_time(backend)
            assert isthmus.stats(group)["notes"] == ["shut down"]
        calls: list[Callable[[], Any]] = [
            lambda group=group: dist.all_reduce(torch.ones(2), group=group),
            lambda group=group: dist.all_reduce(torch.ones(2), group=group, async_op=True),  # in the call itself
            lambda group=group: large_all_gather(group),
            lambda group=group: gradient(group),
            backend.unit_states,
        ]
        for call in calls:
            with pytest.raises(dist.DistBackendError, match=text):
                call()
        backend.abort()
        backend.shutdown()


@table
def abort_ends_what_is_under_way() -> None:
    """Rank 3 comes when the others have ended."""
    group, store, rank = make_group(), dist.distributed_c10d._get_default_store(), dist.get_rank()
    gradient(group)
    dist.barrier()
    if rank < 3:
        threading.Timer(0.5, backend_of(group).abort).start()
        # A rank whose turn came later hears of another's abort.
        with pytest.raises(dist.DistBackendError, match=r"aborted|failed on rank"):
            gradient(group)
        store.set(f"rank {rank} was aborted", "")
    while not store.check([f"rank {other} was aborted" for other in range(3)]):
        time.sleep(0.02)
    backend_of(group).shutdown()


def recorded(group: dist.ProcessGroup) -> list[dict[str, Any]]:
    """The group's entries in torch's flight recorder."""
    entries = json.loads(_dump_fr_trace_json())["entries"]
    return [entry for entry in entries if entry["process_group"][0] == group.group_name]


@table
def the_flight_recorder_knows_what_the_world_backend_runs() -> None:
    group = make_group(group_desc="data parallel", timeout=timedelta(seconds=50))
    dist.all_reduce(torch.ones(3), group=group)
    large_all_gather(group)  # in two tiers, of which torch's recorder cannot know
    group.set_timeout(timedelta(seconds=40))
    dist.broadcast(torch.ones(3), 0, group=group)
    entries = recorded(group)
    assert [entry["process_group"][1] for entry in entries] == ["data parallel"] * 2
    assert [entry["collective_seq_id"] for entry in entries] == [1, 2]
    assert [entry["profiling_name"] for entry in entries] == ["gloo:all_reduce", "gloo:broadcast"]
    assert [entry["timeout_ms"] for entry in entries] == [(50 - REPORT_S) * 1000, (40 - REPORT_S) * 1000]
    assert backend_of(group).options._timeout == timedelta(seconds=40)
    if "backend" in (_dump_fr_trace_json.__doc__ or ""):  # torch 2.15 records calls of any backend, too
        entries = json.loads(_dump_fr_trace_json(backend="isthmus"))["entries"]
        names = [entry["profiling_name"] for entry in entries if entry["process_group"][0] == group.group_name]
        assert names == ["isthmus:all_reduce", "isthmus:_all_gather_base", "isthmus:broadcast"]


@table
def a_profiler_sees_on_the_worker_the_phases_of_calls_that_its_thread_made() -> None:
    group = make_group()
    gradient(group)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        gradient(group)
    gradient(group)
    by_name: dict[str, list[Any]] = {}
    for event in seen.events():
        by_name.setdefault(event.name, []).append(event)
    (call,), (work,) = by_name["isthmus:reduce_scatter"], by_name["isthmus:reduce_scatter x"]
    assert call.thread != work.thread
    for phase in ("intra reduce-scatter", "encode", "inter exchange", "decode"):
        assert by_name[phase], [*by_name]
        for event in by_name[phase]:
            assert event.thread == work.thread
            assert work.time_range.start <= event.time_range.start <= event.time_range.end <= work.time_range.end


@table
def coalesced_all_gathers_are_made_one_by_one() -> None:
    """Gloo's own, two of whose threads write one string, end the process now and then."""
    group = make_group()
    own = [torch.ones(3) * dist.get_rank(), torch.arange(2.0)]
    lists = [[torch.empty(3), torch.empty(2)] for _ in range(WORLD_SIZE)]
    dist.all_gather_coalesced(lists, own, group, async_op=True).wait()
    wholes = [torch.empty(3 * WORLD_SIZE), torch.empty(2 * WORLD_SIZE)]
    results = group.allgather_into_tensor_coalesced(wholes, own).get_future().wait()
    assert len(recorded(group)) == 4
    for index, whole in enumerate(wholes):
        assert results[index] is whole
        assert torch.equal(torch.cat([tensors[index] for tensors in lists]), whole)


@table
def a_timeout_that_means_never() -> None:
    large_all_gather(make_group(timeout=timedelta(days=200_000)))


@table
def a_wait_that_is_shorter_than_the_operation_does_not_end_it() -> None:
    """Rank 3 comes when the others have given up."""
    group, store, rank = make_group(), dist.distributed_c10d._get_default_store(), dist.get_rank()
    given_up = [f"rank {other} gave up" for other in range(3)]
    while rank == 3 and not store.check(given_up):
        time.sleep(0.02)
    gathered, reduced = torch.zeros(WORLD_SIZE * ELEMENTS), torch.ones(5)
    works = [
        dist.all_gather_into_tensor(gathered, torch.ones(ELEMENTS), group=group, async_op=True),
        dist.all_reduce(reduced, group=group, async_op=True),
    ]
    for work in works:
        if rank != 3:
            assert not work.is_completed()
            with pytest.raises(RuntimeError, match=r"(?i)time"):
                work.wait(timedelta(milliseconds=50))
    store.set(f"rank {rank} gave up", "")
    assert all(work.wait() for work in works)
    assert torch.all(gathered == 1) and torch.all(reduced == WORLD_SIZE)


@table
def futures_are_done_when_waiters_go_on() -> None:
    group = make_group()
    for _ in range(20):
        work = gradient(group, async_op=True)
        assert work is not None
        called: list[bool] = []
        future = work.get_future()
        future.add_done_callback(lambda _, called=called: called.append(True))
        work.wait()
        assert future.done()
        assert called == [True]


def gathered(group: dist.ProcessGroup, own: torch.Tensor, by_future: bool = False) -> torch.Tensor:
    """Gather in two tiers, waiting for the Work or for its Future."""
    output = torch.empty(WORLD_SIZE * own.numel())
    work = dist.all_gather_into_tensor(output, own, group=group, async_op=True)
    assert work is not None
    work.get_future().wait() if by_future else work.wait()
    return output


def in_rounds(group: dist.ProcessGroup, callback: Callable[[torch.Tensor], torch.Tensor]) -> torch.futures.Future:
    """Gather and let the Future's callback do the next round with this rank's part."""
    output = torch.empty(WORLD_SIZE * ELEMENTS)
    own = torch.full((ELEMENTS,), float(dist.get_rank()))
    work = dist.all_gather_into_tensor(output, own, group=group, async_op=True)
    assert work is not None
    return work.get_future().then(lambda _: callback(output.chunk(WORLD_SIZE)[dist.get_rank()]))


@table
def callbacks_may_wait_for_calls_that_they_make() -> None:
    expected = torch.arange(WORLD_SIZE).repeat_interleave(ELEMENTS).float()
    for group in (make_group(), make_group("gloo")):
        for by_future in (False, True):
            future = in_rounds(group, lambda own, g=group, f=by_future: gathered(g, own, f))
            assert torch.equal(future.wait(), expected)
    group = make_group()  # Gloo's two threads, and with them Gloo, would stand still
    three = in_rounds(group, lambda own: in_rounds(group, lambda own: gathered(group, own)).wait())
    assert torch.equal(three.wait(), expected)


@table
def calls_of_many_callbacks_come_in_order() -> None:
    """Those that run where their Future completes: torch runs others in the thread that adds them."""
    group, other = make_group(), make_group()
    expected = torch.arange(WORLD_SIZE).repeat_interleave(ELEMENTS).float()
    calls: list[int] = []
    plug = dist.all_gather_into_tensor(torch.empty(WORLD_SIZE << 20), torch.ones(1 << 20), group=group, async_op=True)

    def second_round(own: torch.Tensor, number: int) -> torch.Tensor:
        output = torch.empty(WORLD_SIZE * ELEMENTS)
        work = dist.all_gather_into_tensor(output, own, group=other, async_op=True)
        if threading.current_thread() is not threading.main_thread():
            calls.append(number)
        assert work is not None
        work.wait()
        return output

    futures = [in_rounds(group, lambda own, n=number: second_round(own, n)) for number in range(61)]
    assert all(torch.equal(future.wait(), expected) for future in futures)
    assert plug is not None
    plug.wait()
    assert calls == sorted(calls)


@table
def callbacks_end_when_their_group_is_aborted() -> None:
    group, other = make_group(), make_group()
    future = in_rounds(group, lambda own: gathered(other, own) if dist.get_rank() else own)  # rank 0 never comes
    dist.barrier()
    backend_of(other).abort()
    if dist.get_rank():
        # This rank's own abort, or that of a rank which closed its connections a moment earlier.
        with pytest.raises(RuntimeError, match=r"abort|phase inter all-gather"):
            future.wait()
    backend_of(group).shutdown()


@table
def threads_have_names() -> None:
    names = {(thread / "comm").read_text().strip() for thread in Path("/proc/self/task").iterdir()}
    assert {"isthmus_worker", "isthmus_watch"} <= names


ENV = {"ISTHMUS_NODES": "2x2", "ISTHMUS_MIN_ELEMENTS": "4096", "ISTHMUS_CODEC": "none", "ISTHMUS_LOG": "error"}
test_interface = table.in_world(env=ENV)
