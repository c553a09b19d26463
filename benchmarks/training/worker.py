"""One rank of the training benchmark: all arms' models side by side, stepped by command of the launcher."""

import math
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, bf16_compress_hook
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

import isthmus
from isthmus.benchmarks.common.data import Text, default_files
from isthmus.benchmarks.common.fsdp import make_adamw, replicate, set_lr_share, shard
from isthmus.benchmarks.common.isthmus_group import new_group, sent_bytes
from isthmus.benchmarks.common.model import ByteGpt, loss_of
from isthmus.benchmarks.common.recorder import Audit, record_collectives
from isthmus.benchmarks.common.stage import Join, join_simulated, plain_backend
from isthmus.benchmarks.simulate.serve import Emit, SaysAll
from isthmus.benchmarks.training.config import TrainingConfig
from isthmus.plan.strategies import ARMS, DDP_BF16, Strategy

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
    """Trains a GPT under FSDP2 or DDP over `mesh`. Weights and batches depend on the config alone: arms compare."""

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
            model = ByteGpt(config.shape)
        self._model: ByteGpt | DistributedDataParallel = model
        # FSDP2 casts by itself. DDP's gradients are those of float32 parameters, as where people train so.
        self._autocasts = arm.is_ddp and config.dtype == "bf16"
        if arm.is_ddp:
            plain = bf16_compress_hook if arm.name.startswith(DDP_BF16.name) else allreduce_hook
            self._model = replicate(model, mesh.get_group(), plain if arm.is_plain else None)
        else:
            shard(model, mesh, config.dtype, config.ranks_per_node if arm.keeps_on_node else 0)
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
            with self._reducing(part is parts[-1]):
                loss = self._loss(part) / len(parts)
                loss.backward()  # type: ignore[no-untyped-call]
            whole += loss.detach()
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._step += 1
        return float(whole)

    def _loss(self, part: torch.Tensor) -> torch.Tensor:
        with torch.autocast(self._device, torch.bfloat16, enabled=self._autocasts):
            return loss_of(self._model, part)

    def _reducing(self, is_last: bool) -> AbstractContextManager[None]:
        """Whether the backward pass inside reduces between nodes, in an arm that defers this."""
        if isinstance(self._model, DistributedDataParallel):
            return nullcontext() if is_last or not self._arm.defers else self._model.no_sync()
        assert isinstance(self._model, FSDPModule)
        if self._arm.defers and self._arm.hybrid_sharded:
            self._model.set_requires_all_reduce(is_last)
        elif self._arm.defers:
            self._model.set_requires_gradient_sync(is_last)
        return nullcontext()

    @torch.no_grad()
    def validate(self) -> float:
        """Mean loss of this rank's held-out sequences."""
        batch = self._text.validation_batch(self._rank, self._config.validation_sequences).to(self._device)
        losses = [float(self._loss(part)) for part in torch.split(batch, self._config.sequences)]
        if isinstance(self._model, FSDPModule):
            self._model.reshard()
        return sum(losses) / len(losses)


@contextmanager
def _told_if_full() -> Iterator[None]:
    """Says what a rank takes where a GPU has no room for it."""
    try:
        yield
    except torch.OutOfMemoryError:
        taken = torch.cuda.max_memory_reserved()
        free, total = (number / _GIB for number in torch.cuda.mem_get_info())
        raise SaysAll(
            f"its GPU is full: of {total:.1f} GiB this rank has taken {taken / _GIB:.1f} and wants more, and "
            f"{free:.1f} are free; leave out --arms, whose models are there at once, or lower --sequences, "
            "--layers, --width or --ranks-per-node"
        ) from None


class Worker:
    """What a rank does on request."""

    def __init__(self, join: Join = join_simulated) -> None:
        self._join = join
        self._groups: dict[str, list[dist.ProcessGroup]] = {}  # of each arm those of Isthmus
        self._trainers: dict[str, Trainer] = {}
        self._held_bytes: dict[str, int] = {}  # of each arm on the GPU, between steps
        self._plain: dist.ProcessGroup | None = None

    @_told_if_full()
    def setup(self, emit: Emit, config: TrainingConfig, counts_links: bool, num_steps: int) -> int:
        """Join the world and build every arm; returns the number of parameters."""
        self._place = self._join(config.device, config.timeout_s, counts_links)
        self._timeout = timedelta(seconds=config.timeout_s)
        by_node = torch.arange(config.world_size).view(config.nodes, config.ranks_per_node).tolist()
        self._audit = Audit(new_group("gloo", self._timeout, by_node), self._place)
        text = Text([Path(name) for name in config.text] or default_files(), config.context, config.seed)
        for name in config.arms:
            held_before = self._place.held_bytes()
            mesh, self._groups[name] = _make_groups(ARMS[name], config)
            # Without it units do not overlap on GPUs, and DDP's gradients are not known as such.
            is_prepared = bool(self._groups[name]) and (config.device == "cuda" or ARMS[name].is_ddp)
            self._trainers[name] = Trainer(mesh, config, text, num_steps, ARMS[name], is_prepared)
            self._held_bytes[name] = self._place.held_bytes() - held_before
        return self._trainers[config.arms[0]].num_parameters

    @_told_if_full()
    def steps(self, emit: Emit, arm: str, num_steps: int, audit: bool) -> list[dict[str, Any]]:
        """Train one arm for some steps, from a barrier on; returns one record a step."""
        dist.barrier()
        records = []
        for _ in range(num_steps):
            record = self._record_step(arm, audit)
            records.append(record)
            emit({key: record[key] for key in ("loss", "seconds")})
        return records

    @_told_if_full()
    def carry(self, emit: Emit, num_bytes: int) -> tuple[float, int | None]:
        """Reduce `num_bytes` over all ranks on the plain backend; returns how long it takes, and what is sent."""
        if self._plain is None:
            self._plain = new_group(plain_backend(self._place.device), self._timeout)
        data = torch.zeros(num_bytes // 4, device=self._place.device)
        for _ in range(2):  # the first connects, and empties the link's bucket
            dist.barrier()
            sent_before = self._place.sent_bytes()
            start_s = time.perf_counter()
            dist.all_reduce(data, group=self._plain)
            self._place.synchronize()
            seconds = time.perf_counter() - start_s
            dist.barrier()
        return seconds, self._place.sent_bytes(sent_before)

    @_told_if_full()
    def validate(self, emit: Emit, arm: str) -> float:
        """Validation loss of one arm."""
        return self._trainers[arm].validate()

    def _record_step(self, arm: str, audit: bool) -> dict[str, Any]:
        sent_before = self._place.sent_bytes()
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
            "link_sent_bytes": self._place.sent_bytes(sent_before),
            "gpu_bytes": self._place.peak_bytes() - of_others,
            "payload_bytes": payload if self._groups[arm] else None,
            "collectives": recording.collectives if audit else None,
        }

    def _payload_bytes(self, arm: str) -> Counter[str]:
        """What the arm's groups of Isthmus have sent so far."""
        total: Counter[str] = Counter()
        for group in self._groups[arm]:
            total.update(sent_bytes(group))
        return total


def _make_groups(arm: Strategy, config: TrainingConfig) -> tuple[DeviceMesh, list[dist.ProcessGroup]]:
    """The mesh that an arm's model is sharded over: all ranks, or for HSDP the rails and the nodes. Collective.

    It is what `init_device_mesh` makes, but for options and timeout of its own. The groups are those of the mesh, if
    their backend is Isthmus.
    """
    ranks = torch.arange(config.world_size).view(config.nodes, config.ranks_per_node)
    ranks_of_dimensions = [ranks.T.tolist(), ranks.tolist()] if arm.hybrid_sharded else [None]
    timeout = timedelta(seconds=config.timeout_s)
    backend, options = plain_backend(config.device), None
    if arm.options is not None:
        backend, options = "isthmus", isthmus.Options(**arm.options)  # type: ignore[arg-type]
    groups = [new_group(backend, timeout, of_dimension, options) for of_dimension in ranks_of_dimensions]
    of_isthmus = groups if arm.options is not None else []
    if not arm.hybrid_sharded:
        return DeviceMesh.from_group(groups[0], config.device), of_isthmus
    names = ("replicate", "shard")
    return DeviceMesh.from_group(groups, config.device, mesh=ranks, mesh_dim_names=names), of_isthmus
