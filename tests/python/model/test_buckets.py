"""DDP's hook: a reduction that fails is not taken for one that was done."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from isthmus.model import buckets


class FailedWork(dist.Work):
    """The Work of an all-reduce that fails."""

    def get_future(self) -> torch.futures.Future[torch.Tensor]:
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_exception(dist.DistBackendError("rank 3 is missing"))
        return future


@pytest.fixture
def model() -> Iterator[nn.parallel.DistributedDataParallel]:
    """Yield a DDP model over a group of 4 ranks that does nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
    dist.destroy_process_group()


@pytest.mark.parametrize("prepared", [True, False], ids=["prepared", "detached"])
def test_a_failed_reduction_fails_the_backward_pass(
    model: nn.parallel.DistributedDataParallel, monkeypatch: pytest.MonkeyPatch, prepared: bool
) -> None:
    reduction = buckets.BucketReduction(model, buckets.Prepared("", "*", prefetches=True))
    if prepared:
        monkeypatch.setattr(buckets, "group_on_isthmus", lambda group: group)
        monkeypatch.setattr(buckets, "backend_of", lambda group: None)
        monkeypatch.setattr(reduction, "_call", lambda *arguments, **named: torch.no_grad())
    else:
        reduction.prepared = None
    model.register_comm_hook(None, reduction.reduce)
    monkeypatch.setattr(dist, "all_reduce", lambda *arguments, **named: FailedWork())
    loss = model(torch.ones(2, 4)).sum()
    with pytest.raises(RuntimeError, match="rank 3 is missing"):
        loss.backward()
