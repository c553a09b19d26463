"""Forked children beside a group."""

import atexit
import os
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

import isthmus
from support.checks import Table
from support.limits import OPERATION_S

pytestmark = pytest.mark.processes

WORLD_SIZE = 4
table = Table()


class Numbers(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((8192,), float(index))


def gradient(source: torch.Tensor) -> torch.Tensor:
    """A reduction that the worker thread runs."""
    with isthmus.unit("x"):
        dist.all_reduce(source)
    return source


def exit_code_of(child: Callable[[], None]) -> int:
    """Run `child` in a forked process; an exception is exit code 1, and -1 means that it hung."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads: that is the test
        pid = os.fork()
    if pid == 0:
        try:
            child()
        except BaseException:
            os._exit(1)
        os._exit(0)
    deadline = time.monotonic() + OPERATION_S
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return -1


def check_group() -> None:
    assert torch.equal(gradient(torch.ones(8192)), torch.full((8192,), float(WORLD_SIZE)))
    total = torch.ones(3)
    dist.all_reduce(total)
    assert total.tolist() == [WORLD_SIZE] * 3


@table
def data_loaders_with_forked_workers() -> None:
    loader = DataLoader(Numbers(), batch_size=4, num_workers=2, multiprocessing_context="fork")
    for first_index, batch in zip(range(0, 24, 4), loader, strict=True):
        under_way = dist.all_reduce(torch.ones(8192), async_op=True)
        assert torch.all(gradient(batch[0].clone()) == WORLD_SIZE * first_index)
        under_way.wait()
    check_group()


@table
def a_forked_child_that_leaves_the_group_alone_destroys_its_copy_or_ends() -> None:
    """The last as it ends through the interpreter."""
    for child in (lambda: None, dist.destroy_process_group, atexit._run_exitfuncs):
        assert exit_code_of(child) == 0
        check_group()


@table
def a_forked_child_while_the_worker_is_busy() -> None:
    works = []
    with isthmus.unit("busy"):
        works = [dist.all_reduce(torch.ones(1 << 20), async_op=True) for _ in range(4)]
    code = exit_code_of(dist.destroy_process_group)
    for work in works:
        work.wait()
    assert code == 0
    check_group()


@table
def calls_in_a_forked_child_are_errors() -> None:
    def child() -> None:
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))  # type: ignore[union-attr]
        calls: list[Callable[[], Any]] = [
            lambda: dist.all_reduce(torch.ones(2)),
            lambda: gradient(torch.ones(8192)),
            lambda: dist.all_gather_into_tensor(torch.empty(4 * 8192), torch.ones(8192)),
            lambda: dist.send(torch.ones(1), (dist.get_rank() + 1) % WORLD_SIZE),
            dist.barrier,
            isthmus.stats,
            isthmus.reset_stats,
            backend.unit_states,
            backend.begin_step,
            backend.skip_step,
        ]
        for call in calls:
            with pytest.raises(RuntimeError, match="forked"):
                call()

    assert exit_code_of(child) == 0
    check_group()


@table
def a_forked_child_may_make_a_group_of_its_own() -> None:
    def child() -> None:
        dist.destroy_process_group()
        del os.environ["ISTHMUS_NODES"]
        dist.init_process_group("isthmus", store=dist.HashStore(), rank=0, world_size=1)
        total = torch.ones(3)
        dist.all_reduce(total)
        assert total.tolist() == [1, 1, 1]
        assert isthmus.stats()["calls"] == {"allreduce": 1}
        dist.destroy_process_group()

    assert exit_code_of(child) == 0
    check_group()


@table
def works_of_the_parent_are_errors_in_a_forked_child() -> None:
    calls: list[Callable[[torch.Tensor], Any]] = [
        lambda tensor: dist.all_reduce(tensor, async_op=True),
        lambda tensor: dist.all_gather_into_tensor(torch.empty(WORLD_SIZE * tensor.numel()), tensor, async_op=True),
    ]
    works = [call(torch.ones(8192)) for call in calls]

    def child() -> None:
        for work in works:
            for use in (work.wait, work.get_future):
                with pytest.raises(RuntimeError, match="forked"):
                    use()

    assert exit_code_of(child) == 0
    for work in works:
        work.wait()
    check_group()


ENV = {"ISTHMUS_NODES": "2x2", "ISTHMUS_MIN_ELEMENTS": "4096", "ISTHMUS_CODEC": "none", "ISTHMUS_LOG": "error"}
test_processes = table.in_world(env=ENV)
