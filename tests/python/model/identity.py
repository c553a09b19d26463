"""What tests of units' identity share: options, groups, a model and reasons for exactness."""

from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import isthmus
from isthmus.base import native
from support.families import world

UNITS = ("blocks.0", "blocks.1", "root")
REASONS = native.load().Reason
# Codecs that keep residuals, with so little sent that a residual would be seen.
KEEPING: dict[str, dict[str, Any]] = {
    "tagc": {"codec": "tagc", "sparsity": 0.75, "ratio": 2},
    "quant with feedback": {"codec": "quant", "bits": 2, "error_feedback": "on"},
}


def group_of(**options: Any) -> dist.ProcessGroup:
    return dist.new_group(backend="isthmus", pg_options=isthmus.Options(nodes="2x2", min_elements=0, **options))


def world_of(store: dist.Store, **options: Any) -> AbstractContextManager[None]:
    """Make a default group: torch takes meshes of equal ranks for one another, whatever their groups are."""
    texts = {f"ISTHMUS_{key.upper()}": str(value) for key, value in options.items()}
    return world(store, "none", {"ISTHMUS_CODEC": isthmus.Options().codec, **texts})


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up = nn.Linear(64, 64, bias=False)
        self.down = nn.Linear(64, 64, bias=False)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.down(torch.tanh(self.up(features)))  # type: ignore[no-any-return]
