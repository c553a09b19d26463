"""One rank of the training benchmark: all arms' models side by side, stepped by command of the launcher."""

from isthmus.simulate.serve import Emit, die_with_launcher, serve

if __name__ == "__main__":
    die_with_launcher()

import math
import os
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from isthmus.bench.arms import ARMS, Arm
from isthmus.bench.config import TrainingConfig
from isthmus.bench.data import Text, default_files
from isthmus.bench.isthmus_group import IsthmusGroup
from isthmus.bench.model import ByteGpt, loss_of
from isthmus.bench.recorder import Audit, record_collectives
from isthmus.simulate.links import interface_sent_bytes

_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp16": torch.float16}
_WARM_UP_STEPS = 10
_CONSTANT_SHARE = 0.6
_FINAL_LR_SHARE = 0.1
# Keeps fp16 gradients of this small model out of the denormals. Other types have the range.
_FP16_LOSS_SCALE = 1024.0


def lr_share(step: int, num_steps: int) -> float:
    """Share of the peak learning rate: linear warm-up, constant, then linear decay over the last 40%."""
    if step < _WARM_UP_STEPS:
        return (step + 1) / _WARM_UP_STEPS
    decay_from = _CONSTANT_SHARE * num_steps
    progress = max(0.0, (step - decay_from) / max(1.0, num_steps - decay_from))
    return 1 - (1 - _FINAL_LR_SHARE) * min(1.0, progress)


class ArmTrainer:
    """Model, optimizer and position in the data of one arm."""

    def __init__(self, arm: Arm, config: TrainingConfig, text: Text, num_steps: int) -> None:
        self._config = config
        self._text = text
        self._num_steps = num_steps
        self._step = 0
        self._rank = dist.get_rank()
        self._loss_scale = _FP16_LOSS_SCALE if config.dtype == "fp16" else 1.0
        mesh, self.isthmus_group = _make_mesh(arm, config)
        torch.manual_seed(config.seed)
        self._model = ByteGpt(config.shape)
        dtype = _DTYPES[config.dtype]
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=dtype)
        for module in (*self._model.blocks, self._model):
            fully_shard(module, mesh=mesh, mp_policy=policy)
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(), lr=config.lr, betas=(0.9, 0.95), weight_decay=0.1, fused=True
        )

    @property
    def num_parameters(self) -> int:
        """Parameters of the whole model."""
        return sum(parameter.numel() for parameter in self._model.parameters())

    def step(self) -> float:
        """Train on the next batch; returns this rank's loss."""
        for group in self._optimizer.param_groups:
            group["lr"] = self._config.lr * lr_share(self._step, self._num_steps)
        loss = loss_of(self._model, self._text.batch(self._step, self._rank, self._config.sequences))
        (loss * self._loss_scale).backward()  # type: ignore[no-untyped-call]
        for parameter in self._model.parameters() if self._loss_scale != 1 else ():
            assert parameter.grad is not None
            parameter.grad /= self._loss_scale
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._step += 1
        return float(loss.detach())

    @torch.no_grad()
    def validate(self) -> float:
        """Mean loss of this rank's held-out sequences."""
        batch = self._text.validation_batch(self._rank, self._config.validation_sequences)
        losses = [float(loss_of(self._model, part)) for part in torch.split(batch, self._config.sequences)]
        assert isinstance(self._model, FSDPModule)
        self._model.reshard()
        return sum(losses) / len(losses)


def _make_mesh(arm: Arm, config: TrainingConfig) -> tuple[DeviceMesh, IsthmusGroup | None]:
    """The mesh to shard over, and the Isthmus group if the arm has one. Timeouts are not inherited by new groups."""
    timeout = timedelta(seconds=config.timeout_s)
    if arm.hybrid_sharded:
        ranks = torch.arange(config.world_size).view(config.nodes, config.ranks_per_node)
        groups = [_group_among(rows.tolist(), timeout) for rows in (ranks.T, ranks)]
        return DeviceMesh.from_group(groups, "cpu", mesh=ranks, mesh_dim_names=("replicate", "shard")), None
    if arm.isthmus is None:
        return DeviceMesh.from_group(dist.new_group(backend="gloo", timeout=timeout), "cpu"), None
    group = IsthmusGroup(arm.isthmus, timeout)
    return DeviceMesh.from_group(group.group, "cpu"), group


def _group_among(groups_of_ranks: list[list[int]], timeout: timedelta) -> dist.ProcessGroup:
    """This rank's one of several disjoint Gloo groups."""
    group, _ = dist.new_subgroups_by_enumeration(groups_of_ranks, timeout=timeout)  # type: ignore[no-untyped-call]
    assert isinstance(group, dist.ProcessGroup)
    return group


class Worker:
    """The commands that a rank answers."""

    def __init__(self) -> None:
        self._trainers: dict[str, ArmTrainer] = {}
        self._sent_bytes: Callable[[], int] | None = None
        self._audit: Audit | None = None

    def setup(self, command: dict[str, Any], emit: Emit) -> dict[str, Any]:
        """Join the world and build every arm."""
        config = TrainingConfig.from_json(command["config"])
        torch.set_num_threads(1)
        dist.init_process_group("gloo", timeout=timedelta(seconds=config.timeout_s))
        if command["count_link"] and os.environ["LOCAL_RANK"] == "0":
            self._sent_bytes = partial(interface_sent_bytes, os.environ["GLOO_SOCKET_IFNAME"])
        by_node = torch.arange(config.world_size).view(config.nodes, config.ranks_per_node).tolist()
        node_group = _group_among(by_node, timedelta(seconds=config.timeout_s))
        self._audit = Audit(node_group, self._sent_bytes)
        files = [Path(name) for name in config.text] or default_files()
        text = Text(files, config.context, config.seed)
        for name in config.arms:
            self._trainers[name] = ArmTrainer(ARMS[name], config, text, command["num_steps"])
        train_bytes, held_out_bytes = text.num_bytes
        groups = {name: trainer.isthmus_group for name, trainer in self._trainers.items()}
        return {
            "options": {name: group.options for name, group in groups.items() if group},
            "num_parameters": self._trainers[config.arms[0]].num_parameters,
            "text": {"files": len(files), "train_bytes": train_bytes, "held_out_bytes": held_out_bytes},
        }

    def steps(self, command: dict[str, Any], emit: Emit) -> dict[str, Any]:
        """Train one arm for some steps, from a barrier on; one record a step."""
        trainer = self._trainers[command["arm"]]
        dist.barrier()
        records = []
        for _ in range(command["num_steps"]):
            record = self._record_step(trainer, command["audit"])
            records.append(record)
            emit({key: record[key] for key in ("loss", "seconds", "link_sent_bytes")})
        return {"records": records}

    def validate(self, command: dict[str, Any], emit: Emit) -> dict[str, Any]:
        """Validation loss of one arm."""
        return {"loss": self._trainers[command["arm"]].validate()}

    def _record_step(self, trainer: ArmTrainer, audit: bool) -> dict[str, Any]:
        sent_before = self._sent_bytes() if self._sent_bytes else 0
        group = trainer.isthmus_group
        before = group.counters() if group else None
        start_s = time.perf_counter()
        with record_collectives(self._audit if audit else None) as recording:
            loss = trainer.step()
        seconds = time.perf_counter() - start_s
        if not math.isfinite(loss):
            raise RuntimeError(f"loss is {loss}")
        return {
            "loss": loss,
            "seconds": seconds,
            "phases_s": recording.phases_s(seconds),
            "link_sent_bytes": self._sent_bytes() - sent_before if self._sent_bytes else None,
            "isthmus": group.counters().since(before) if group and before else None,
            "collectives": recording.as_json() if audit else None,
        }


def main() -> None:
    """Serve the launcher until it says "exit"."""
    worker = Worker()
    serve({"setup": worker.setup, "steps": worker.steps, "validate": worker.validate})


if __name__ == "__main__":
    main()
