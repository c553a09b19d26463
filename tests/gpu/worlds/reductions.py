"""Collectives that worlds call, and what they should give."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

import isthmus

#: Nothing is set for the default codec, which is one that keeps no residuals (quant).
SETTINGS: dict[str, dict[str, Any]] = {
    "none": {"codec": "none"},
    "default": {},
    "tagc": {"codec": "tagc", "ratio": 4, "sparsity": 0.9},
    "flat tagc": {"codec": "tagc", "ratio": 4, "sparsity": 0.9, "tiers": "flat"},
    "default in segments": {"segments": 4},
    "tagc in segments": {"codec": "tagc", "ratio": 4, "sparsity": 0.9, "segments": 4},
}


def isthmus_group(codec: str = "none", **options: Any) -> dist.ProcessGroup:
    """Return a new group of all ranks, two nodes of two, with one of the `SETTINGS`."""
    settings = {"nodes": "2x2", "min_elements": 0, "log": "error", **SETTINGS[codec], **options}
    return dist.new_group(backend="isthmus", pg_options=isthmus.Options(**settings))


def reduce_scatter(
    source: torch.Tensor, group: dist.ProcessGroup | None, unit: str = "x", op: Any = dist.ReduceOp.SUM
) -> torch.Tensor:
    """Reduce-scatter `source` as FSDP's gradient of `unit`."""
    shard = torch.full((source.numel() // dist.get_world_size(),), 77, dtype=source.dtype, device=source.device)
    with isthmus.unit(unit):
        dist.reduce_scatter_tensor(shard, source, op, group=group)
    return shard


def all_reduce(
    source: torch.Tensor, group: dist.ProcessGroup | None, unit: str = "x", op: Any = dist.ReduceOp.SUM
) -> torch.Tensor:
    """All-reduce a copy of `source` as FSDP's gradient of `unit`."""
    result = source.clone()
    with isthmus.unit(unit):
        dist.all_reduce(result, op, group=group)
    return result


def whole_numbers(num_elements: int, dtype: torch.dtype, rank: int, salt: int = 0) -> torch.Tensor:
    """Return numbers of a rank that sum exactly in every type and order. On the CPU."""
    generator = torch.Generator().manual_seed(1000 * salt + rank)
    return torch.randint(-16, 17, (num_elements,), generator=generator).to(dtype)


def heavy_tail(num_elements: int, rank: int, salt: int = 0) -> torch.Tensor:
    """Return float32 numbers of which a few are much larger than the others, as in gradients. On the CPU."""
    generator = torch.Generator().manual_seed(1000 * salt + rank)
    values = torch.randn(num_elements, generator=generator)
    return values * values.abs().pow(3)


def own_chunk(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part."""
    return tensor.chunk(dist.get_world_size())[dist.get_rank()]


def sent_bytes(group: dist.ProcessGroup) -> dict[str, dict[str, int]]:
    """Return what this rank handed to the tiers of a group, by collective and tier."""
    collectives = isthmus.stats(group)["collectives"]
    return {
        kind: {tier: counts[tier]["sent_bytes"] for tier in ("intra", "inter", "flat")}
        for kind, counts in collectives.items()
    }
