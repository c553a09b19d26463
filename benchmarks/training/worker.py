"""One rank of the training benchmark: all arms' models side by side, stepped by command of the launcher."""

from isthmus.benchmarks.simulate.serve import Emit, Handler, SaysAll, die_with_launcher, serve

if __name__ == "__main__":
    die_with_launcher()

import math
import time
from collections import Counter
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule

import isthmus
from isthmus.benchmarks.common.data import Text, default_files
from isthmus.benchmarks.common.fsdp import make_adamw, set_lr_share, shard
from isthmus.benchmarks.common.isthmus_group import IsthmusGroup, new_group
from isthmus.benchmarks.common.model import ByteGpt, loss_of
from isthmus.benchmarks.common.recorder import Audit, record_collectives
from isthmus.benchmarks.common.stage import Join, Place
from isthmus.benchmarks.simulate.stage import join_simulated
from isthmus.benchmarks.training.config import TrainingConfig
from isthmus.plan.strategies import ARMS, Strategy

_WARM_UP_STEPS = 10
_CONSTANT_SHARE = 0.6
_FINAL_LR_SHARE = 0.1
_GIB = 1 << 30


def lr_share(step: int, num_steps: int) -> float:
    """Share of the peak learning rate: linear warm-up, constant, then linear decay over the last 40%."""
    if step < _WARM_UP_STEPS:
        return (step + 1) / _WARM_UP_STEPS
    decay_from = _CONSTANT_SHARE * num_steps
    progress = max(0.0, (step - decay_from) / max(1.0, num_steps - decay_from))
    return 1 - (1 - _FINAL_LR_SHARE) * min(1.0, progress)


class Trainer:
    """Trains a GPT under FSDP2 over `mesh`. Weights and batches depend on the config alone, so arms can be compared."""

    def __init__(
        self,
        mesh: DeviceMesh,
        config: TrainingConfig,
        text: Text,
        num_steps: int,
        arm: Strategy,
        is_prepared: bool = False,
    ) -> None:
        self._config = config
        self._arm = arm
        self._text = text
        self._device = mesh.device_type
        self._num_steps = num_steps
        self._step = 0
        self._rank = dist.get_rank()
        torch.manual_seed(config.seed)
        with torch.device(self._device):
            self._model = ByteGpt(config.shape)
        shard(self._model, mesh, config.dtype, config.ranks_per_node if arm.keeps_on_node else 0)
        if is_prepared:
            isthmus.prepare(self._model)
        self._optimizer = make_adamw(self._model.parameters(), config.lr)

    @property
    def num_parameters(self) -> int:
        """Parameters of the whole model."""
        return sum(parameter.numel() for parameter in self._model.parameters())

    def step(self) -> float:
        """Train on the next batch, in micro-batches; returns this rank's loss."""
        set_lr_share(self._optimizer, lr_share(self._step, self._num_steps))
        batch = self._text.batch(self._step, self._rank, self._config.sequences).to(self._device)
        parts = batch.chunk(self._config.micro_batches)
        whole = torch.zeros((), device=self._device)
        for part in parts:
            self._reduce_now(part is parts[-1])
            loss = loss_of(self._model, part) / len(parts)
            loss.backward()  # type: ignore[no-untyped-call]
            whole += loss.detach()
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._step += 1
        return float(whole)

    def _reduce_now(self, is_last: bool) -> None:
        """Say whether the next backward pass reduces between nodes, in an arm that defers this."""
        assert isinstance(self._model, FSDPModule)
        if self._arm.defers and self._arm.hybrid_sharded:
            self._model.set_requires_all_reduce(is_last)
        elif self._arm.defers:
            self._model.set_requires_gradient_sync(is_last)

    @torch.no_grad()
    def validate(self) -> float:
        """Mean loss of this rank's held-out sequences."""
        batch = self._text.validation_batch(self._rank, self._config.validation_sequences).to(self._device)
        losses = [float(loss_of(self._model, part)) for part in torch.split(batch, self._config.sequences)]
        assert isinstance(self._model, FSDPModule)
        self._model.reshard()
        return sum(losses) / len(losses)


class Worker:
    """The commands that a rank answers."""

    def __init__(self, join: Join) -> None:
        self._join = join
        self._groups: dict[str, list[IsthmusGroup]] = {}
        self._trainers: dict[str, Trainer] = {}
        self._place = Place()
        self._audit: Audit | None = None
        self._held_bytes: dict[str, int] = {}  # of each arm on the GPU, between steps
        self._plain: dist.ProcessGroup | None = None
        self._timeout = timedelta()

    def setup(self, command: dict[str, Any], emit: Emit) -> dict[str, Any]:
        """Join the world and build every arm."""
        config = TrainingConfig.from_json(command["config"])
        self._place = self._join(command)
        self._timeout = timedelta(seconds=config.timeout_s)
        by_node = torch.arange(config.world_size).view(config.nodes, config.ranks_per_node).tolist()
        node_group = new_group("gloo", self._timeout, by_node)
        self._audit = Audit(node_group, self._place)
        files = [Path(name) for name in config.text] or default_files()
        text = Text(files, config.context, config.seed)
        for name in config.arms:
            held_before = self._place.held_bytes()
            mesh, self._groups[name] = _make_groups(ARMS[name], config, self._place)
            # Without it units do not overlap on GPUs.
            is_prepared = self._place.device == "cuda" and bool(self._groups[name])
            self._trainers[name] = Trainer(mesh, config, text, command["num_steps"], ARMS[name], is_prepared)
            self._held_bytes[name] = self._place.held_bytes() - held_before
        train_bytes, held_out_bytes = text.num_bytes
        return {
            "options": {name: groups[0].options for name, groups in self._groups.items() if groups},
            "num_parameters": self._trainers[config.arms[0]].num_parameters,
            "text": {"files": len(files), "train_bytes": train_bytes, "held_out_bytes": held_out_bytes},
        }

    def steps(self, command: dict[str, Any], emit: Emit) -> dict[str, Any]:
        """Train one arm for some steps, from a barrier on; one record a step."""
        dist.barrier()
        records = []
        for _ in range(command["num_steps"]):
            record = self._record_step(command["arm"], command["audit"])
            records.append(record)
            emit({key: record[key] for key in ("loss", "seconds")})
        return {"records": records}

    def carry(self, command: dict[str, Any], emit: Emit) -> dict[str, Any]:
        """Reduce `num_bytes` over all ranks on the plain backend; tell how long it takes, and what is sent."""
        if self._plain is None:
            self._plain = new_group(self._place.backend, self._timeout)
        data = torch.zeros(command["num_bytes"] // 4, device=self._place.device)
        sent_bytes = self._place.sent_bytes
        for _ in range(2):  # the first connects, and empties the link's bucket
            dist.barrier()
            sent_before = sent_bytes() if sent_bytes else 0
            start_s = time.perf_counter()
            dist.all_reduce(data, group=self._plain)
            self._place.synchronize()
            seconds = time.perf_counter() - start_s
            dist.barrier()
        return {"seconds": seconds, "sent_bytes": sent_bytes() - sent_before if sent_bytes else None}

    def validate(self, command: dict[str, Any], emit: Emit) -> dict[str, Any]:
        """Validation loss of one arm."""
        return {"loss": self._trainers[command["arm"]].validate()}

    def _record_step(self, arm: str, audit: bool) -> dict[str, Any]:
        sent_bytes = self._place.sent_bytes
        sent_before = sent_bytes() if sent_bytes else 0
        payload_before = self._payload_bytes(arm)
        held_before = self._place.held_bytes(resets_peak=True)
        start_s = time.perf_counter()
        with record_collectives(self._audit if audit else None) as recording:
            loss = self._trainers[arm].step()
            self._place.synchronize()
        seconds = time.perf_counter() - start_s
        dist.barrier()  # until then this node's last bytes may wait in the queue of its link
        payload = self._payload_bytes(arm)
        payload.subtract(payload_before)
        of_others = held_before - self._held_bytes[arm]
        self._held_bytes[arm] = self._place.held_bytes() - of_others
        if not math.isfinite(loss):
            raise RuntimeError(f"loss is {loss}")
        return {
            "loss": loss,
            "seconds": seconds,
            "phases_s": recording.phases_s(seconds, self._place.device),
            "link_sent_bytes": sent_bytes() - sent_before if sent_bytes else None,
            "gpu_bytes": self._place.peak_bytes() - of_others,
            "payload_bytes": payload if self._groups[arm] else None,
            "collectives": [asdict(each) for each in recording.collectives] if audit else None,
        }

    def _payload_bytes(self, arm: str) -> Counter[str]:
        """What the arm's groups of Isthmus have sent so far."""
        total: Counter[str] = Counter()
        for group in self._groups[arm]:
            total.update(group.sent_bytes())
        return total


def _make_groups(arm: Strategy, config: TrainingConfig, place: Place) -> tuple[DeviceMesh, list[IsthmusGroup]]:
    """The mesh that an arm's model is sharded over: all ranks, or for HSDP the rails and the nodes. Collective.

    It is what `init_device_mesh` makes, but for options and timeout of its own. The groups are those of the mesh, if
    their backend is Isthmus.
    """
    ranks = torch.arange(config.world_size).view(config.nodes, config.ranks_per_node)
    ranks_of_dimensions = [ranks.T.tolist(), ranks.tolist()] if arm.hybrid_sharded else [None]
    timeout = timedelta(seconds=config.timeout_s)
    isthmus_groups = []
    if arm.options is not None:
        isthmus_groups = [IsthmusGroup(arm.options, timeout, groups) for groups in ranks_of_dimensions]
        groups = [group.group for group in isthmus_groups]
    else:
        groups = [new_group(place.backend, timeout, groups) for groups in ranks_of_dimensions]
    if not arm.hybrid_sharded:
        return DeviceMesh.from_group(groups[0], place.device), isthmus_groups
    names = ("replicate", "shard")
    return DeviceMesh.from_group(groups, place.device, mesh=ranks, mesh_dim_names=names), isthmus_groups


def handlers(join: Join) -> dict[str, Handler]:
    """The commands of a rank that joins the world in this way, by name."""
    worker = Worker(join)
    return {name: _told_if_full(getattr(worker, name)) for name in ("setup", "steps", "carry", "validate")}


def _told_if_full(handler: Handler) -> Handler:
    """The handler, which says what a rank takes where a GPU has no room for it."""

    def handle(command: dict[str, Any], emit: Emit) -> dict[str, Any]:
        try:
            return handler(command, emit)
        except torch.OutOfMemoryError:
            taken = torch.cuda.max_memory_reserved()
            free, total = (number / _GIB for number in torch.cuda.mem_get_info())
            raise SaysAll(
                f"its GPU is full: of {total:.1f} GiB this rank has taken {taken / _GIB:.1f} and wants more, and "
                f"{free:.1f} are free; leave out --arms, whose models are there at once, or lower --sequences, "
                "--layers, --width or --ranks-per-node"
            ) from None

    return handle


if __name__ == "__main__":
    serve(handlers(join_simulated))
