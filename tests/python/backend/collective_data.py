"""What tests of collectives put in, how they compare what comes out, and the worlds in which they run."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from support import ranks
from support.checks import Table, finish

WORLD_SIZE = 4
# Of worlds without and with torch's own checks of each collective.
_PLAIN = {"ISTHMUS_NODES": "2x2", "ISTHMUS_MIN_ELEMENTS": "0"}
ENVIRONMENTS = {"plain": _PLAIN, "detail": _PLAIN | {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}}
FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
DTYPES = [*FLOATS, torch.int32, torch.int64, torch.uint8]


def data(*shape: int, dtype: torch.dtype = torch.float32, salt: int = 0) -> torch.Tensor:
    """Different on every rank, the same at every call."""
    generator = torch.Generator().manual_seed(1000 * salt + dist.get_rank())
    if dtype.is_floating_point:
        return torch.randn(*shape, generator=generator).to(dtype)
    return torch.randint(0, 50, shape, generator=generator).to(dtype)


def same(ours: Any, gloos: Any) -> None:
    if isinstance(ours, list):
        assert len(ours) == len(gloos)
        for one, other in zip(ours, gloos, strict=True):
            same(one, other)
        return
    assert ours.dtype == gloos.dtype
    assert torch.equal(ours, gloos)


def rank_and_size() -> tuple[int, int]:
    return dist.get_rank(), dist.get_world_size()


def run_beside_gloo(table: Table) -> dict[str, str]:
    """Be one rank: run all checks with a group on Gloo beside the default one, and leave together."""
    ranks.init()
    failures = table.run_on_this_rank(dist.new_group(backend="gloo"))
    finish()
    return failures
