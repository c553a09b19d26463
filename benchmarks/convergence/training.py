"""Data, schedule, optimizer and counters of `isthmus bench convergence`."""

import hashlib
import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from isthmus import _C
from isthmus.benchmarks.common.data import check_split, read_split
from isthmus.benchmarks.common.fsdp import make_adamw
from isthmus.benchmarks.common.model import loss_of
from isthmus.benchmarks.convergence.config import VALIDATED_SHARES, Setting

MAX_GRADIENT_NORM = 1.0
_WARM_UP_SHARE = 0.05
_FINAL_LR_SHARE = 0.1
#: The same held-out sequences in every run, whatever its seed.
_VALIDATION_SEED = 0
_VALIDATION_BATCH = 64


def lr_share(step: int, num_steps: int) -> float:
    """Share of the peak learning rate: linear warm-up over the first 5%, then a cosine down to a tenth."""
    warm_up_steps = max(1, round(_WARM_UP_SHARE * num_steps))
    if step < warm_up_steps:
        return (step + 1) / warm_up_steps
    progress = (step - warm_up_steps) / max(1, num_steps - warm_up_steps)
    return _FINAL_LR_SHARE + (1 - _FINAL_LR_SHARE) * (1 + math.cos(math.pi * progress)) / 2


def make_optimizer(name: str, parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    """AdamW, or SGD with momentum."""
    if name == "adamw":
        return make_adamw(parameters, lr)
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9, fused=True)


def validated_steps(num_steps: int) -> list[int]:
    """After how many steps the validation set is evaluated."""
    return [round(share * num_steps) for share in VALIDATED_SHARES]


class Batches:
    """The sequences of one run. They depend on text, setting and seed alone; ranks share each step's batch out."""

    def __init__(self, files: Sequence[Path], setting: Setting, seed: int) -> None:
        self._train, self._held_out = _bytes_of(tuple(files), setting.context)
        self._offsets = torch.arange(setting.context + 1)
        self._starts = self._draw(self._train, (setting.steps, setting.sequences), seed)
        self._validation_starts = self._draw(self._held_out, (setting.validation_sequences,), _VALIDATION_SEED)

    def batch(self, step: int, rank: int, world_size: int) -> Tensor:
        """The rank's sequences of context + 1 bytes."""
        starts = self._starts[step].view(world_size, -1)[rank]
        return self._sequences(self._train, starts)

    def validation_batches(self, rank: int, world_size: int) -> Iterable[Tensor]:
        """The rank's share of the held-out sequences, in the same order in each call."""
        for starts in torch.split(self._validation_starts[rank::world_size], _VALIDATION_BATCH):
            yield self._sequences(self._held_out, starts)

    def _draw(self, source: Tensor, shape: tuple[int, ...], seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(source.numel() - len(self._offsets) + 1, shape, generator=generator)

    def _sequences(self, source: Tensor, starts: Tensor) -> Tensor:
        return source[starts[:, None] + self._offsets].long()


@lru_cache(maxsize=1)
def native_build() -> str:
    """The identity of a build of the native module: a hash of its file."""
    return hashlib.sha256(Path(_C.__file__).read_bytes()).hexdigest()[:12]


@lru_cache(maxsize=1)
def _bytes_of(files: tuple[Path, ...], context: int) -> tuple[Tensor, Tensor]:
    train, held_out = read_split(files)
    check_split(train, held_out, context)
    return torch.frombuffer(train, dtype=torch.uint8), torch.frombuffer(held_out, dtype=torch.uint8)


def training_loss(model: nn.Module, batch: Tensor) -> Tensor:
    """`loss_of`, with plain attention: on a CPU and with sequences this short it takes a fifth less of a step."""
    with sdpa_kernel(SDPBackend.MATH):
        return loss_of(model, batch)


@torch.no_grad()
def total_loss(model: nn.Module, batches: Iterable[Tensor]) -> tuple[float, int]:
    """Sum of the mean losses of all sequences, and their number."""
    total, count = 0.0, 0
    for batch in batches:
        total += float(training_loss(model, batch)) * len(batch)
        count += len(batch)
    return total, count


def averaged(losses: Sequence[float], num_parts: int = 20) -> list[float]:
    """Means over so many equal parts of a run, for a curve; fewer where there are fewer steps."""
    num_parts = min(num_parts, len(losses))
    ends = [round(len(losses) * part / num_parts) for part in range(num_parts + 1)]
    return [math.fsum(losses[low:high]) / (high - low) for low, high in pairwise(ends)]


def crossing_bytes(stats: Sequence[dict[str, Any]]) -> int:
    """Payload of reductions that the ranks with these statistics sent to other nodes."""
    counted = [rank["collectives"][kind] for rank in stats for kind in ("reduce_scatter", "all_reduce")]
    return sum(tiers[tier]["inter_node_sent_bytes"] for tiers in counted for tier in ("intra", "inter", "flat"))


def relative_error(stats: Sequence[dict[str, Any]]) -> float | None:
    """Mean relative squared error of the codec on the ranks with these statistics, where it was measured."""
    units = [unit for rank in stats for unit in rank["units"] if unit["relative_squared_error"] is not None]
    num_elements = sum(unit["coded_elements"] for unit in units)
    if not num_elements:
        return None
    mean = math.fsum(unit["relative_squared_error"] * unit["coded_elements"] for unit in units) / num_elements
    return mean if math.isfinite(mean) else None
