"""Torchft's own tests of process groups, over Isthmus."""

from __future__ import annotations

from datetime import timedelta
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist
import torchft
from torch import nn
from torch.distributed import TCPStore
from torchft import process_group_test as own

from isthmus.torchft import ProcessGroupIsthmus

# `_run_with_resiliency` is left out: it wants a failed group to say "aborted", where Isthmus says what failed.
# test_group.py loses members, too. Gloo, to which exact reduce-scatters go, has no futures of them, and refuses the
# shapes that torchft gives; torchft's own group over Gloo has none at all.
_NOT_OF_GLOO = ["reduce_scatter", "reduce_scatter_tensor_coalesced"]


class TestSeveralMembers(own.MultiPgBaseTest):  # type: ignore[misc]
    WORLD_SIZE = 3

    @classmethod
    def _create_pg(cls, backend: str) -> ProcessGroupIsthmus:
        return ProcessGroupIsthmus(timedelta(seconds=60))

    def test_collectives(self) -> None:
        for collective in set(own._ALL_COLLECTIVES) - set(_NOT_OF_GLOO):
            with self.subTest(collective):
                self._run_parallel(collective)


@pytest.fixture
def alone() -> ProcessGroupIsthmus:
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    group = ProcessGroupIsthmus()
    group.configure(f"localhost:{store.port}/prefix", "0", 0, 1)
    group.kept = store
    return group


def test_apis(alone: ProcessGroupIsthmus) -> None:
    assert alone.size() == 1
    own._test_pg(alone, torch.tensor([2]), _NOT_OF_GLOO)
    model = nn.parallel.DistributedDataParallel(nn.Linear(3, 4), process_group=alone)
    model(torch.rand(2, 3))


def test_managed(alone: ProcessGroupIsthmus) -> None:
    manager = Mock(spec=torchft.Manager)
    manager.errored.return_value = None
    manager._pg = alone
    manager.num_participants.return_value = 1
    managed = torchft.process_group.ManagedProcessGroup(manager)
    assert managed.size() == 1
    own._test_pg(managed, skip=_NOT_OF_GLOO)
    assert manager.allreduce.call_count == 2


def test_functional_collectives() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    try:
        group = ProcessGroupIsthmus().register("functional")
        group.configure(f"localhost:{store.port}/prefix", "0", 0, 1)
        torch.distributed._functional_collectives.all_reduce(torch.zeros(10), "sum", group).wait()
        group.unregister()
    finally:
        dist.destroy_process_group()
