"""What tests of gradients' reductions share: groups by options, inputs of all ranks, and error bounds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

import isthmus
from support import ranks
from support.checks import Table, finish
from support.tested_codecs import carried

WORLD_SIZE = 4
NODE_MAPS = {"2x2": (2, 2), "0,2|1,3": (2, 2), "4x1": (4, 1)}  # nodes, ranks a node


class Groups:
    """One group for each set of options, made when it is first asked for."""

    def __init__(self) -> None:
        self.gloo = dist.new_group(backend="gloo")
        self._made: dict[str, dist.ProcessGroup] = {}

    def __call__(self, **options: Any) -> dist.ProcessGroup:
        options = {"nodes": "2x2", "min_elements": 0, **options}
        key = repr(sorted(options.items()))
        if key not in self._made:
            self._made[key] = dist.new_group(backend="isthmus", pg_options=isthmus.Options(**options))
        isthmus.reset_stats(self._made[key])
        return self._made[key]


@contextmanager
def gradient(unit: str = "x") -> Iterator[None]:
    with isthmus.unit(unit):
        yield


def inputs_of_all_ranks(numel: int, dtype: torch.dtype, salt: int = 0) -> list[torch.Tensor]:
    return [
        torch.randn(numel, generator=torch.Generator().manual_seed(100 * salt + rank)).to(dtype)
        for rank in range(WORLD_SIZE)
    ]


def carried_by_all_ranks(numel: int, step: int = 0) -> list[torch.Tensor]:
    return [carried(numel, rank, WORLD_SIZE, step) for rank in range(WORLD_SIZE)]


def reduce_scatter(
    group: dist.ProcessGroup, source: torch.Tensor, op: Any = dist.ReduceOp.SUM, unit: str = "x"
) -> torch.Tensor:
    shard = torch.full((source.numel() // WORLD_SIZE,), torch.nan).to(source.dtype)
    with gradient(unit):
        dist.reduce_scatter_tensor(shard, source, op, group=group)
    return shard


def all_reduce(
    group: dist.ProcessGroup, source: torch.Tensor, op: Any = dist.ReduceOp.SUM, unit: str = "x"
) -> torch.Tensor:
    result = source.clone()
    with gradient(unit):
        dist.all_reduce(result, op, group=group)
    return result


def native(group: dist.ProcessGroup) -> Any:
    return group._get_backend(torch.device("cpu"))


def own_chunk(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.chunk(WORLD_SIZE)[dist.get_rank()]


def on_all_ranks(groups: Groups, holds: bool) -> bool:
    """Whether it holds everywhere: a rank that fails alone would leave the others waiting for its next collective."""
    number = torch.tensor(int(holds))
    dist.all_reduce(number, dist.ReduceOp.MIN, group=groups.gloo)
    return bool(number)


def run_table(table: Table) -> dict[str, str]:
    """Be one rank: make the default group, run all checks, and leave together."""
    ranks.init()
    failures = table.run_on_this_rank(Groups())
    finish()
    return failures
