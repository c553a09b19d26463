"""A small transformer, the text it learns, and what a run of training leaves behind."""

from __future__ import annotations

import functools
import io
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import isthmus
from gpu.worlds.reductions import SETTINGS
from gpu.worlds.world import World, gathered, require
from isthmus.benchmarks.common.model import ByteGpt, loss_of
from isthmus.benchmarks.common.shape import ModelShape
from support.tested_codecs import environment

SHAPE = ModelShape(width=128, num_layers=2, context=64)
SEQUENCES = 8
LEARNING_RATE = 3e-3
PLAIN: dict[str, str] = {}
CODECS = {codec: environment({"nodes": "2x2", "min_elements": 0, **settings}) for codec, settings in SETTINGS.items()}


@dataclass
class Run:
    """What came out of some steps. units: how often each unit was compressed."""

    losses: list[float]
    weights: torch.Tensor  # whole, on the CPU
    units: dict[str, int] = field(default_factory=dict)
    exact: Counter[str] = field(default_factory=Counter)
    residuals: list[torch.Tensor] = field(default_factory=list)


def make_model(world: World) -> nn.Module:
    """Return the model, with equal weights on every rank and in every run."""
    torch.manual_seed(0)
    return ByteGpt(SHAPE).to(world.device)


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of all runs."""
    return torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)


@functools.cache
def text_to_learn() -> bytes:
    """Return the project's own manual, as it is when it is first asked for."""
    return (Path(__file__).resolve().parents[3] / "docs/operating.md").read_bytes()


def batch(world: World, step: int) -> torch.Tensor:
    """Return a rank's sequences of a step, from places in the text that follow from both."""
    text = text_to_learn()
    generator = torch.Generator().manual_seed(1000 * step + world.rank)
    starts = torch.randint(len(text) - SHAPE.context - 1, (SEQUENCES,), generator=generator).tolist()
    rows = [list(text[start : start + SHAPE.context + 1]) for start in starts]
    return torch.tensor(rows, device=world.device)


def train(world: World, model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> Run:
    """Train; return what came out. No step waits for the device."""
    losses = []
    for step in steps:
        with sdpa_kernel(SDPBackend.MATH):  # whose gradients are the same bits each time
            loss = loss_of(model, batch(world, step))
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    world.settle()
    return describe(model, torch.stack(losses))


def describe(model: nn.Module, losses: torch.Tensor) -> Run:
    """Return losses averaged over ranks, weights, and what Isthmus did, if it did."""
    mean = torch.tensor(gathered(losses.cpu().tolist())).mean(0).tolist()
    weights = torch.cat([whole(parameter).flatten() for parameter in model.parameters()]).cpu()
    groups = isthmus_groups()
    statistics = [isthmus.stats(group) for group in groups]
    return Run(
        losses=mean,
        weights=weights,
        units=units_of(groups),
        exact=sum((Counter(entry["exact_calls"]) for entry in statistics), Counter()),
        residuals=residuals_of(groups),
    )


def whole(parameter: torch.Tensor) -> torch.Tensor:
    """Return a sharded parameter as an ordinary tensor."""
    data = parameter.detach()
    return data.full_tensor() if isinstance(data, DTensor) else data


def isthmus_groups() -> list[dist.ProcessGroup]:
    """Return all groups of this process that are of Isthmus."""
    groups = [group for group in dist.distributed_c10d._world.pg_map if isinstance(group, dist.ProcessGroup)]
    return [group for group in groups if dist.get_backend(group) == "isthmus"]


def unit_states(groups: list[dist.ProcessGroup]) -> list[dict[str, Any]]:
    """Return the state of all units."""
    return [state for group in groups for state in isthmus.backends.backend_of(group).unit_states()]


def units_of(groups: list[dist.ProcessGroup]) -> dict[str, int]:
    """Return how often each unit was compressed."""
    return {f"{state['name']} {state['collective']}": state["step"] for state in unit_states(groups)}


def residuals_of(groups: list[dist.ProcessGroup]) -> list[torch.Tensor]:
    """Return copies of all residuals."""
    residuals = [state["residual"] for state in unit_states(groups)]
    return [residual.cpu().clone() for residual in residuals if residual.numel() > 0]


@dataclass(frozen=True)
class Saved:
    """This rank's part of everything, as files would hold it."""

    bytes: bytes

    @staticmethod
    def of(model: nn.Module, optimizer: torch.optim.Optimizer) -> Saved:
        """Save model, optimizer and residuals."""
        file = io.BytesIO()
        torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "isthmus": isthmus.state_dict(model)},
            file,
        )
        return Saved(file.getvalue())

    def load(self, world: World, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Undo `of`."""
        state = torch.load(io.BytesIO(self.bytes), map_location=world.device, weights_only=False)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        isthmus.load_state_dict(state["isthmus"], model)


def require_equal_ranks(run: Run) -> None:
    """All ranks hold the same bits."""
    digest = hash(run.weights.numpy().tobytes())
    require(len(set(gathered(digest))) == 1, "ranks hold different weights")


def require_close(run: Run, plain: Run, tolerance: float) -> dict[str, float]:
    """The same training but for the order of sums; return how far apart it is."""
    away = float((run.weights - plain.weights).norm() / plain.weights.norm())
    by_loss = max(abs(ours / theirs - 1) for ours, theirs in zip(run.losses, plain.losses, strict=True))
    require(by_loss <= tolerance, "losses differ by", by_loss, run.losses, plain.losses)
    require(away <= tolerance, "weights differ by", away)
    return {"relative difference of losses": by_loss, "of weights": away}


def require_follows(run: Run, plain: Run) -> dict[str, float]:
    """The default codec trains as plain training does, up to its error; nothing is kept for later."""
    require(plain.losses[-1] < 0.8 * plain.losses[0], "plain training does not learn", plain.losses)
    require(not run.residuals, "the default codec keeps residuals")
    last = slice(-(len(plain.losses) // 3), None)  # single losses jump, with any rounding
    by_loss = sum(run.losses[last]) / sum(plain.losses[last]) - 1
    require(run.losses != plain.losses, "nothing was compressed")
    require(abs(by_loss) < 0.1, "losses differ by", by_loss, run.losses, plain.losses)
    return {"relative difference of the last losses": by_loss, "last loss": run.losses[-1]}


def require_learns(run: Run, plain: Run) -> dict[str, float]:
    """Compressed training gets most of the way of plain training."""
    share = (run.losses[0] - run.losses[-1]) / (plain.losses[0] - plain.losses[-1])
    require(plain.losses[-1] < 0.8 * plain.losses[0], "plain training does not learn", plain.losses)
    require(share > 0.7, "share of plain training's progress", share, run.losses, plain.losses)
    return {"first loss": run.losses[0], "last loss": run.losses[-1], "last loss, plain": plain.losses[-1]}


Wrap = Callable[[World, nn.Module], nn.Module]


def trained(world: World, wrap: Wrap, backend: str, env: dict[str, str], num_steps: int) -> Run:
    """Train a model over a group of its own; weights are the same bits on all ranks."""
    with world.group(backend, env):
        model = wrap(world, make_model(world))
        run = train(world, model, make_optimizer(model), range(num_steps))
        require_equal_ranks(run)
    return run
