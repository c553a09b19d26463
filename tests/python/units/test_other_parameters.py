"""Ranks of one node that use other parameters of one unit: an error at once, or FSDP2 reduces the unused ones, too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

import isthmus
from support import ranks
from support.checks import finish

WIDTH = 64
ADVICE = "set_reduce_scatter_unused_params"


class Choice(nn.Module):
    """Two layers of equal size, of which a rank uses one."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))

    def forward(self, features: torch.Tensor, index: int) -> torch.Tensor:
        return self.layers[index](features)  # type: ignore[no-any-return]


def outcome_of_a_pass(rank: int, world_size: int, backend: str, reduces_unused: bool) -> Any:
    """Even ranks use the first layer: each rail agrees. Return the error, or the sums of the layers' gradients."""
    ranks.init(backend, timeout_s=86_400)  # nobody waits for it
    model: Any = fully_shard(Choice())
    if backend == "isthmus":
        isthmus.prepare(model)
    if reduces_unused:
        getattr(model, ADVICE)(True)
    try:
        model(torch.full((1, WIDTH), rank + 1.0), rank % 2).sum().backward()
    except dist.DistBackendError as error:
        return str(error)
    sums = []
    for layer in model.layers:
        gradient = layer.weight.grad
        assert gradient is None or isinstance(gradient, DTensor)
        sums.append(None if gradient is None else round(float(gradient.full_tensor().sum()) / WIDTH**2, 3))
    finish()
    return sums


ENV = {"ISTHMUS_NODES": "2x2", "ISTHMUS_MIN_ELEMENTS": "0"}


@pytest.mark.processes
def test_ranks_of_one_node_that_reduce_other_parameters_are_told_at_once() -> None:
    for rank, error in enumerate(ranks.run(outcome_of_a_pass, 4, "isthmus", False, env=ENV)):
        assert f'unit "root": rank {rank ^ 1} of this node reduces another unit, or other parameters of it' in error
        assert f"model.{ADVICE}(True)" in error


if hasattr(FSDPModule, ADVICE):  # torch 2.11 lacks it

    @pytest.mark.processes
    def test_what_the_error_advises_helps() -> None:
        """Means over 4 ranks of what ranks 0, 2 and 1, 3 have."""
        assert ranks.run(outcome_of_a_pass, 4, "isthmus", True, env=ENV) == [[(1 + 3) / 4, (2 + 4) / 4]] * 4
