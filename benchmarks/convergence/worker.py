"""One rank of `isthmus bench convergence`: trains under FSDP2 by command of the launcher."""

from isthmus.benchmarks.simulate.serve import Emit, die_with_launcher, serve

if __name__ == "__main__":
    die_with_launcher()

import math
import os
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

import isthmus
from isthmus.benchmarks.common.fsdp import set_lr, shard
from isthmus.benchmarks.common.isthmus_group import new_group
from isthmus.benchmarks.common.model import ByteGpt
from isthmus.benchmarks.convergence.runs import Run
from isthmus.benchmarks.convergence.training import (
    MAX_GRADIENT_NORM,
    Batches,
    crossing_bytes,
    lr_share,
    make_optimizer,
    total_loss,
    training_loss,
    validated_steps,
)
from isthmus.benchmarks.simulate.links import interface_sent_bytes


class FsdpTraining:
    """Trains one model under FSDP2 over a group of Isthmus with the run's options. Made by all ranks together."""

    def __init__(self, run: Run, files: Sequence[Path], timeout: timedelta) -> None:
        self.run = run
        self.num_steps_done = 0
        self._rank = dist.get_rank()
        self._batches = Batches(files, run.setting, run.seed)
        options = isthmus.Options(**dict(run.options))
        self._group: dist.ProcessGroup = new_group("isthmus", timeout, options=options)
        torch.manual_seed(run.seed)
        self._model = ByteGpt(run.setting.shape)
        self.num_parameters = sum(parameter.numel() for parameter in self._model.parameters())
        mesh = self._mesh(run, timeout)
        shard(self._model, mesh, run.setting.dtype)
        self._optimizer = make_optimizer(run.setting.optimizer, self._model.parameters(), run.lr)

    def _mesh(self, run: Run, timeout: timedelta) -> DeviceMesh:
        if run.setting.layout == "fsdp":
            return DeviceMesh.from_group(self._group, "cpu")
        # With one rank on each node, as all codecs of two tiers have it: each has all weights.
        ranks = torch.arange(run.world_size).view(-1, 1)
        alone = new_group("gloo", timeout, ranks.tolist())
        return DeviceMesh.from_group([self._group, alone], "cpu", mesh=ranks, mesh_dim_names=("replicate", "shard"))

    def step(self) -> tuple[float, float]:
        """Train on the next batch; returns this rank's loss, and the norm of the whole gradient before it is clipped.

        Past the end of the run it goes on with the last batch.
        """
        step = min(self.num_steps_done, self.run.setting.steps - 1)
        loss = training_loss(self._model, self._batches.batch(step, self._rank, self.run.world_size))
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self._model.parameters(), MAX_GRADIENT_NORM)
        assert isinstance(norm, DTensor)
        set_lr(self._optimizer, self.run.lr * lr_share(step, self.run.setting.steps))
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.num_steps_done += 1
        return float(loss.detach()), float(norm.full_tensor())

    def validate(self) -> tuple[float, int]:
        """Sum of the losses of this rank's held-out sequences, and their number."""
        result = total_loss(self._model, self._batches.validation_batches(self._rank, self.run.world_size))
        assert isinstance(self._model, FSDPModule)
        self._model.reshard()
        return result

    def stats(self) -> dict[str, Any]:
        """Statistics of this rank's communicator."""
        return isthmus.stats(self._group)


class RankWorker:
    """The commands that a rank answers."""

    def __init__(self) -> None:
        self._trainings: dict[str, FsdpTraining] = {}
        self._counts_link = False

    def setup(self, command: dict[str, Any], emit: Emit) -> dict[str, Any]:
        """Join the world and build the model of each run."""
        torch.set_num_threads(1)
        timeout = timedelta(seconds=command["timeout_s"])
        dist.init_process_group("gloo", timeout=timeout)
        self._counts_link = command["count_link"] and os.environ["LOCAL_RANK"] == "0"
        files = [Path(name) for name in command["files"]]
        for values in command["runs"]:
            run = Run.from_json(values)
            self._trainings[run.arm] = FsdpTraining(run, files, timeout)
        return {}

    def train(self, command: dict[str, Any], emit: Emit) -> dict[str, Any]:
        """Train an arm to its end, or until its gradient is not finite, which all ranks see alike."""
        training = self._trainings[command["arm"]]
        losses: list[float] = []
        validated = []
        num_clipped = 0
        while len(losses) < training.run.setting.steps:
            loss, norm = training.step()
            if not math.isfinite(norm):
                break
            losses.append(loss)
            num_clipped += norm > MAX_GRADIENT_NORM
            emit({"step": len(losses), "loss": loss})
            if len(losses) in validated_steps(training.run.setting.steps):
                total, count = training.validate()
                sent_bytes = crossing_bytes([training.stats()])
                validated.append({"step": len(losses), "total": total, "count": count, "sent_bytes": sent_bytes})
        stats = training.stats()
        return {
            "losses": losses,
            "validated": validated,
            "sent_bytes": crossing_bytes([stats]),
            "num_parameters": training.num_parameters,
            "num_clipped": num_clipped,
            "units": stats["units"],
            "compressed_calls": stats["compressed_calls"],
            "exact_calls": stats["exact_calls"],
        }

    def steps(self, command: dict[str, Any], emit: Emit) -> dict[str, Any]:
        """Take some steps of one arm from a barrier on: seconds of each, and what this node's link sent in it."""
        dist.barrier()
        seconds, link_bytes = [], []
        for _ in range(command["num_steps"]):
            before = self._link_bytes()
            start_s = time.perf_counter()
            self._trainings[command["arm"]].step()
            seconds.append(time.perf_counter() - start_s)
            dist.barrier()  # until then this node's last bytes may wait in the queue of its link
            link_bytes.append(self._link_bytes() - before)
        return {"seconds": seconds, "link_bytes": link_bytes}

    def _link_bytes(self) -> int:
        return interface_sent_bytes(os.environ["GLOO_SOCKET_IFNAME"]) if self._counts_link else 0


def main() -> None:
    """Serve the launcher until it says "exit"."""
    worker = RankWorker()
    serve({"setup": worker.setup, "train": worker.train, "steps": worker.steps})


if __name__ == "__main__":
    main()
