"""One model in training: its shards, its optimizer, and its position in the data."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule

from isthmus.benchmarks.common.data import Text
from isthmus.benchmarks.common.fsdp import make_adamw, set_lr_share, shard
from isthmus.benchmarks.common.model import ByteGpt, loss_of
from isthmus.benchmarks.training.config import TrainingConfig

_WARM_UP_STEPS = 10
_CONSTANT_SHARE = 0.6
_FINAL_LR_SHARE = 0.1


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
        self, mesh: DeviceMesh, config: TrainingConfig, text: Text, num_steps: int, kept_on_node: bool = False
    ) -> None:
        self._config = config
        self._text = text
        self._device = mesh.device_type
        self._num_steps = num_steps
        self._step = 0
        self._rank = dist.get_rank()
        torch.manual_seed(config.seed)
        self._model = ByteGpt(config.shape).to(self._device)
        shard(self._model, mesh, config.dtype, config.ranks_per_node if kept_on_node else 0)
        self._optimizer = make_adamw(self._model.parameters(), config.lr)

    @property
    def num_parameters(self) -> int:
        """Parameters of the whole model."""
        return sum(parameter.numel() for parameter in self._model.parameters())

    def step(self) -> float:
        """Train on the next batch; returns this rank's loss."""
        set_lr_share(self._optimizer, lr_share(self._step, self._num_steps))
        batch = self._text.batch(self._step, self._rank, self._config.sequences).to(self._device)
        loss = loss_of(self._model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._step += 1
        return float(loss.detach())

    @torch.no_grad()
    def validate(self) -> float:
        """Mean loss of this rank's held-out sequences."""
        batch = self._text.validation_batch(self._rank, self._config.validation_sequences).to(self._device)
        losses = [float(loss_of(self._model, part)) for part in torch.split(batch, self._config.sequences)]
        assert isinstance(self._model, FSDPModule)
        self._model.reshard()
        return sum(losses) / len(losses)
