"""What `isthmus.attach` adds to a job over NCCL."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import isthmus
from gpu.counts.chain import Counts
from isthmus.backends import companion_of
from python.cuda import worlds as cuda_worlds
from support import fake_gpu, ranks

pytestmark = [pytest.mark.processes, cuda_worlds.needs_fake_gpu]


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


def test_exact_calls_of_a_companion_go_to_the_group_beside_it() -> None:
    for made, small in fake_gpu.run(attached, 6):
        assert [size for size, _ in made] == [2, 2, 3, 3, 6], made  # tiers, those of gathers, and the group's own
        assert small == [36.0] * 6
