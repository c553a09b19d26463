"""What the ranks of a fault run: one call each, whose result nobody looks at."""

from __future__ import annotations

from functools import cache

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import isthmus

NUM_ELEMENTS = 1 << 16
# Enough for several messages of a ring, so that a rank can die in the middle.
WORLD_ELEMENTS = 1 << 20
# The width of a square layer, whose differences take more than 50 kB a rank.
WEIGHTS_WIDTH = 512


@cache
def _gradient() -> tuple[torch.Tensor, torch.Tensor]:
    """Return a gradient and room for its shard."""
    return torch.randn(NUM_ELEMENTS), torch.empty(NUM_ELEMENTS // dist.get_world_size())


def reduce_scatter(unit: str = "blocks.1") -> None:
    """Reduce the gradient of a unit in two tiers, compressed unless the codec is `none`."""
    gradient, shard = _gradient()
    with isthmus.unit(unit):
        dist.reduce_scatter_tensor(shard, gradient)


def asynchronous_reduce_scatter() -> None:
    """Do that, and look at the Work, its Future and the next call."""
    gradient, shard = _gradient()
    with isthmus.unit("blocks.1"):
        work = dist.reduce_scatter_tensor(shard, gradient, async_op=True)
    future = work.get_future()
    try:
        work.wait()
    except dist.DistBackendError as error:
        assert work.is_completed() and not work.is_success()
        for call in (future.wait, all_reduce):
            with pytest.raises(RuntimeError) as again:
                call()
            assert str(error) in str(again.value)
        raise


def reduce_scatter_of_another_unit() -> None:
    """Reduce the gradient of unit blocks.2."""
    reduce_scatter("blocks.2")


def gradient_all_reduce() -> None:
    """All-reduce the gradient of unit blocks.1, compressed both ways unless the codec is `none`."""
    with isthmus.unit("blocks.1"):
        dist.all_reduce(torch.ones(NUM_ELEMENTS))


@cache
def _fsdp2_model() -> nn.Module:
    blocks = [nn.Sequential(nn.Linear(128, 128), nn.ReLU()) for _ in range(3)]
    return fully_shard(nn.Sequential(*map(fully_shard, blocks)))


def fsdp2_step() -> None:
    """Forward and backward of a model under FSDP2, whose units are 0, 1 and 2."""
    model = _fsdp2_model()
    model(torch.ones(4, 128)).sum().backward()
    model.zero_grad()


@cache
def _fsdp2_layer() -> nn.Module:
    return fully_shard(nn.Linear(WEIGHTS_WIDTH, WEIGHTS_WIDTH, bias=False))


def gather_weights() -> None:
    """Forward pass of FSDP2's only unit, after a step that changed all weights."""
    model = _fsdp2_layer()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.01)
        model(torch.ones(4, WEIGHTS_WIDTH))
    model.reshard()  # type: ignore[operator]


def all_gather() -> None:
    """Gather exactly, in two tiers."""
    dist.all_gather_into_tensor(torch.empty(NUM_ELEMENTS), torch.ones(NUM_ELEMENTS // dist.get_world_size()))


def all_reduce() -> None:
    """Reduce in the world backend."""
    dist.all_reduce(torch.ones(WORLD_ELEMENTS))


def all_reduce_with_a_future() -> None:
    """Do that, and wait for the Future."""
    dist.all_reduce(torch.ones(WORLD_ELEMENTS), async_op=True).get_future().wait()


def nothing() -> None:
    """Leave at once."""
