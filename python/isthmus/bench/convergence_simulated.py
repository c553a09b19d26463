"""One screening run: training in one process, with all ranks of all nodes simulated in it."""

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import isthmus
from isthmus._C import SimulatedNodes
from isthmus.bench.convergence_arms import ARMS
from isthmus.bench.convergence_config import Run
from isthmus.bench.convergence_noise import add_noise
from isthmus.bench.convergence_training import (
    DTYPES,
    MAX_GRADIENT_NORM,
    Batches,
    averaged,
    crossing_bytes,
    lr_share,
    make_optimizer,
    native_build,
    relative_error,
    set_lr,
    total_loss,
    training_loss,
    validated_steps,
)
from isthmus.bench.model import ByteGpt


class FlatUnit:
    """The parameters of one unit in the layout of FSDP2's reduction: the rows of rank 0 of all of them, of rank 1, ...

    world_size: how many ranks they are sharded over; the number of rows of each is a multiple of it. master: float32,
    that layout; what the optimizer updates. The parameters themselves are what computes.
    """

    def __init__(self, name: str, parameters: Sequence[nn.Parameter], world_size: int) -> None:
        self.name = name
        self._parameters = list(parameters)
        self._world_size = world_size
        self._widths = [parameter.numel() // world_size for parameter in parameters]
        self.master = nn.Parameter(self._flat([parameter.detach().float() for parameter in parameters]))

    def take_gradient(self) -> Tensor:
        """The gradient of the backward pass that has just run, in the layout of the reduction; resets it."""
        gradients = []
        for parameter in self._parameters:
            assert parameter.grad is not None
            gradients.append(parameter.grad)
            parameter.grad = None
        return self._flat(gradients)

    @torch.no_grad()
    def load_parameters(self) -> None:
        """Copy the master weights into the parameters."""
        parts = torch.split(self.master.view(self._world_size, -1), self._widths, dim=1)
        for parameter, part in zip(self._parameters, parts, strict=True):
            parameter.view(self._world_size, -1).copy_(part)

    def _flat(self, tensors: Sequence[Tensor]) -> Tensor:
        return torch.cat([tensor.reshape(self._world_size, -1) for tensor in tensors], dim=1).flatten()


class SimulatedTraining:
    """Trains one model with the gradients of all ranks, reduced by their communicators."""

    def __init__(self, run: Run, files: Sequence[Path]) -> None:
        self.run = run
        self.sent_bytes = 0
        self._batches = Batches(files, run.setting, run.seed)
        torch.manual_seed(run.seed)
        model = ByteGpt(run.setting.shape)
        hybrid = run.setting.layout == "hsdp"
        self._units = _units_of(model, 1 if hybrid else run.world_size)
        self.num_parameters = sum(unit.master.numel() for unit in self._units)
        self._model = model.to(DTYPES[run.setting.dtype])
        self._nodes = SimulatedNodes(
            num_nodes=run.setting.nodes,
            ranks_per_node=run.ranks_per_node,
            options=isthmus.Options(**dict(run.options)),
        )
        self._reduce = self._nodes.all_reduce if hybrid else self._nodes.reduce
        self._noise = ARMS[run.arm].noise if run.arm in ARMS else ""
        self._noise_generator = torch.Generator().manual_seed(run.seed)
        self._optimizer = make_optimizer(run.setting.optimizer, [unit.master for unit in self._units], run.lr)
        self._load_parameters()

    def step(self, step: int) -> tuple[float, float]:
        """Train on one batch; returns its mean loss, and the norm of the gradient before it is clipped."""
        world_size = self.run.world_size
        losses, gradients = [], []
        for rank in range(world_size):
            loss = training_loss(self._model, self._batches.batch(step, rank, world_size))
            loss.backward()  # type: ignore[no-untyped-call]
            losses.append(float(loss.detach()))
            gradients.append([self._with_noise(unit.take_gradient(), rank) for unit in self._units])
        for unit, gradients_of_ranks in zip(self._units, zip(*gradients, strict=True), strict=True):
            unit.master.grad = self._reduce(unit.name, list(gradients_of_ranks), 1 / world_size).float()
        norm = nn.utils.clip_grad_norm_([unit.master for unit in self._units], MAX_GRADIENT_NORM)
        set_lr(self._optimizer, self.run.lr * lr_share(step, self.run.setting.steps))
        self._optimizer.step()
        self._load_parameters()
        return math.fsum(losses) / world_size, float(norm)

    def validate(self) -> float:
        """Mean loss of the held-out sequences."""
        total, count = total_loss(self._model, self._batches.validation_batches(0, 1))
        return total / count

    def stats(self) -> list[dict[str, Any]]:
        """What each rank's communicator counted."""
        return self._nodes.stats()

    def _with_noise(self, gradient: Tensor, rank: int) -> Tensor:
        if not self._noise:
            return gradient
        return add_noise(gradient, rank, self.run.world_size, self._noise, self._noise_generator)

    def _load_parameters(self) -> None:
        for unit in self._units:
            unit.load_parameters()


def _units_of(model: ByteGpt, world_size: int) -> list[FlatUnit]:
    blocks = {f"blocks.{index}": list(block.parameters()) for index, block in enumerate(model.blocks)}
    in_blocks = {parameter for parameters in blocks.values() for parameter in parameters}
    root = [parameter for parameter in model.parameters() if parameter not in in_blocks]
    return [FlatUnit(name, parameters, world_size) for name, parameters in {**blocks, "root": root}.items()]


def train_simulated(run: Run, files: Sequence[Path]) -> dict[str, Any]:
    """Train as `run` says; returns what came of it, as plain values. A loss that is not finite ends the run.

    Raises isthmus.OptionError if the options are none.
    """
    torch.set_num_threads(1)
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    training = SimulatedTraining(run, files)
    losses: list[float] = []
    validated = []
    num_clipped = 0
    for step in range(run.setting.steps):
        loss, norm = training.step(step)
        if not (math.isfinite(loss) and math.isfinite(norm)):
            break
        losses.append(loss)
        num_clipped += norm > MAX_GRADIENT_NORM
        if step + 1 in validated_steps(run.setting.steps):
            sent_bytes = crossing_bytes(training.stats())
            validated.append({"step": step + 1, "loss": training.validate(), "sent_bytes": sent_bytes})
    diverged = len(losses) < run.setting.steps
    stats = training.stats()
    return {
        "val_loss": None if diverged else validated[-1]["loss"],
        "validated": validated,
        "train_loss": averaged(losses) if losses else [],
        "steps_done": len(losses),
        "sent_bytes": crossing_bytes(stats),
        "num_parameters": training.num_parameters,
        "clipped_share": num_clipped / max(1, len(losses)),
        "relative_error": relative_error(stats),
        "compressed_calls": stats[0]["compressed_calls"],
        "exact_calls": stats[0]["exact_calls"],
        "native_build": native_build(),
        "seconds": round(time.perf_counter() - start_s, 2),
        "cpu_s": round(time.process_time() - start_cpu_s, 2),
    }
