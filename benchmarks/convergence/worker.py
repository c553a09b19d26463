"""One rank of `python -m isthmus.benchmarks.convergence`: trains under FSDP2, or DDP, by command of the launcher."""

import math
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DistributedDataParallel

import isthmus
from isthmus.benchmarks.common.data import Text
from isthmus.benchmarks.common.diloco import DiLoCo
from isthmus.benchmarks.common.fsdp import Muon, make_adamw, set_lr_share, shard, whole
from isthmus.benchmarks.common.isthmus_group import new_group, sent_bytes
from isthmus.benchmarks.common.model import ByteGpt, loss_of
from isthmus.benchmarks.common.stage import join_simulated
from isthmus.benchmarks.convergence.results import Run
from isthmus.benchmarks.simulate.serve import Emit

_MAX_GRADIENT_NORM = 1.0
_WARM_UP_SHARE = 0.05
_FINAL_LR_SHARE = 0.1
_VALIDATION_BATCH = 64


def lr_share(step: int, num_steps: int) -> float:
    """Share of the peak learning rate: linear warm-up over the first 5%, then a cosine down to a tenth."""
    warm_up_steps = max(1, round(_WARM_UP_SHARE * num_steps))
    if step < warm_up_steps:
        return (step + 1) / warm_up_steps
    progress = (step - warm_up_steps) / max(1, num_steps - warm_up_steps)
    return _FINAL_LR_SHARE + (1 - _FINAL_LR_SHARE) * (1 + math.cos(math.pi * progress)) / 2


def _loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    """With plain attention: on a CPU and with sequences this short it takes a fifth less of a step."""
    with sdpa_kernel(SDPBackend.MATH):
        return loss_of(model, batch)


class Worker:
    """What a rank does on request."""

    def setup(self, emit: Emit, run: Run, files: Sequence[Path], timeout_s: float) -> None:
        """Join the world and build the model."""
        join_simulated("cpu", timeout_s, counts_links=False)
        timeout = timedelta(seconds=timeout_s)
        self._run = run
        self._text = Text(files, run.setting.shape.context, run.seed)
        self._group: dist.ProcessGroup = new_group("isthmus", timeout, options=isthmus.Options(**run.options))
        torch.manual_seed(run.seed)
        model = ByteGpt(run.setting.shape)
        self._num_parameters = sum(parameter.numel() for parameter in model.parameters())
        self._model: nn.Module = model
        if run.layout == "ddp":
            self._model = DistributedDataParallel(model, process_group=self._group)
            isthmus.prepare(self._model)
        else:
            shard(model, self._mesh(timeout), run.setting.dtype)
        self._diloco = DiLoCo(model.parameters(), self._group, run.local_steps) if run.layout == "diloco" else None
        self._optimizer: torch.optim.Optimizer | Muon = (
            Muon(model, run.muon_lr, run.lr) if run.muon_lr else make_adamw(model.parameters(), run.lr)
        )

    def _mesh(self, timeout: timedelta) -> DeviceMesh:
        """The ranks that share the model's weights; for HSDP, whose nodes have a rank each, and those that do not."""
        if self._run.layout == "fsdp":
            return DeviceMesh.from_group(self._group, "cpu")
        alone = new_group("gloo", timeout, [[rank] for rank in range(self._run.world_size)])
        if self._run.layout == "diloco":
            return DeviceMesh.from_group(alone, "cpu")
        ranks = torch.arange(self._run.world_size).unsqueeze(1)
        return DeviceMesh.from_group([self._group, alone], "cpu", mesh=ranks, mesh_dim_names=("replicate", "shard"))

    def train(self, emit: Emit) -> dict[str, Any]:
        """Train to the end, or until the gradient is not finite, which all ranks see alike; then validate."""
        steps_done, start_s = 0, time.perf_counter()
        while steps_done < self._run.setting.steps:
            loss, norm = self._step(steps_done)
            if not math.isfinite(norm):
                break
            steps_done += 1
            emit({"step": steps_done, "loss": loss})
        train_s = time.perf_counter() - start_s
        of_gradients = sent_bytes(self._group)["reduce_scatter"]
        units = isthmus.stats(self._group)["units"]
        total_loss, count = self._validate()
        return {
            "steps_done": steps_done,
            "train_s": train_s,
            "total_loss": total_loss,
            "count": count,
            "sent_bytes": of_gradients,
            "num_parameters": self._num_parameters,
            "units": units,
        }

    def _step(self, step: int) -> tuple[float, float]:
        """This rank's loss in the next step, and the norm of what the ranks reduced (before a gradient is clipped)."""
        setting = self._run.setting
        loss = _loss_of(self._model, self._share_of(self._text.batch(step, 0, setting.sequences)))
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self._model.parameters(), _MAX_GRADIENT_NORM)
        set_lr_share(self._optimizer, lr_share(step, setting.steps))
        self._optimizer.step()
        self._optimizer.zero_grad()
        if self._diloco:
            return float(loss.detach()), self._diloco.after_step(step + 1 == setting.steps)
        return float(loss.detach()), float(whole(norm))

    @torch.no_grad()
    def _validate(self) -> tuple[float, int]:
        """Sum of the losses of this rank's held-out sequences, and their number."""
        held_out = self._share_of(self._text.validation_batch(0, self._run.setting.validation_sequences))
        batches = torch.split(held_out, _VALIDATION_BATCH)
        total = sum(float(_loss_of(self._model, batch)) * len(batch) for batch in batches)
        if isinstance(self._model, FSDPModule):
            self._model.reshard()
        return total, len(held_out)

    def _share_of(self, sequences: Tensor) -> Tensor:
        """Every rank draws all sequences of a step: they do not depend on the number of ranks that share them."""
        return sequences[dist.get_rank() :: self._run.world_size]
