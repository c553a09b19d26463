"""What a step of training costs to send: by isthmus.weights, by zstd, as changed elements; bits an element."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from isthmus import weights
from isthmus.benchmarks.common.data import Text, default_files
from isthmus.benchmarks.common.fsdp import make_adamw
from isthmus.benchmarks.common.model import ByteGpt, loss_of
from isthmus.benchmarks.common.report import report_head
from isthmus.benchmarks.weights.config import WeightsConfig
from isthmus.plan.figures import figures_table

_LR_BEFORE = 1e-3
FIELDS = {
    "lr": "bits an element of bfloat16 that the last step takes at a learning rate; unchanged: a share of elements"
}
Weights = dict[str, Tensor]


class _Training:
    """AdamW on float32 weights. What is sent are copies in bfloat16, as inference has them."""

    def __init__(self, config: WeightsConfig) -> None:
        torch.manual_seed(config.seed)
        self._config = config
        self._text = Text(default_files(), config.shape.context, config.seed)
        self._model: nn.Module = ByteGpt(config.shape)
        self._optimizer = make_adamw(self._model.parameters(), _LR_BEFORE)
        self._step = 0

    def at(self, lr: float) -> "_Training":
        """A copy that goes on at another learning rate."""
        other = _Training(self._config)
        other._model.load_state_dict(self._model.state_dict())
        other._optimizer.load_state_dict(deepcopy(self._optimizer.state_dict()))
        for group in other._optimizer.param_groups:
            group["lr"] = lr
        other._step = self._step
        return other

    def take_step(self) -> None:
        loss_of(self._model, self._text.batch(self._step, 0, self._config.sequences)).backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._step += 1

    def sent(self) -> Weights:
        return {name: tensor.bfloat16() for name, tensor in self._model.state_dict().items()}


def run_weights(config: WeightsConfig, console: Console) -> dict[str, Any]:
    """Train, take steps at each learning rate, and measure the last. Raises RuntimeError if a bit comes out wrong."""
    with console.status("training"):
        before = _Training(config)
        for _ in range(config.steps):
            before.take_step()
    rows = {}
    for lr in config.lr:
        with console.status(f"learning rate {lr:g}"):
            training = before.at(lr)
            for _ in range(config.steps_at_lr):
                old = training.sent()
                training.take_step()
            rows[f"{lr:g}"] = _measured(old, training.sent())
    return {**report_head(), "arguments": asdict(config), "fields": FIELDS, "lr": rows}


def _measured(old: Weights, new: Weights) -> dict[str, float]:
    update = weights.encode(old, new)
    result = weights.apply(old, update)
    if any(not torch.equal(result[name].view(torch.int16), new[name].view(torch.int16)) for name in new):
        raise RuntimeError("weights came out with other bits than those that were encoded")
    before, after = _patterns(old), _patterns(new)
    changed = float((before != after).double().mean())
    xor = before ^ after
    num_elements = after.numel()
    return {
        "unchanged": 1 - changed,
        "isthmus.weights": 8 * len(update) / num_elements,
        "zstd -3 of the XOR": 8 * _zstd_bytes(xor.view(torch.uint8)) / num_elements,
        "the same, bytes apart": 8 * _zstd_bytes(xor.view(torch.uint8).view(-1, 2).t().contiguous()) / num_elements,
        "index (32 bits) and value": 48 * changed,
        "bitmap and values": 1 + 16 * changed,
        "everything": 16,
    }


def _patterns(tensors: Weights) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors.values()]).view(torch.int16)


def _zstd_bytes(data: Tensor) -> int:
    import zstandard

    return len(zstandard.ZstdCompressor(level=3).compress(data.numpy().tobytes()))


def print_weights(report: dict[str, Any], console: Console) -> None:
    """Print methods by learning rates."""
    by_lr = report["lr"]
    table: Table = figures_table(
        "bits an element, at a learning rate of", "A step of AdamW, sent in bfloat16", [*by_lr]
    )
    form: Callable[[float], str] = "{:.3f}".format
    for name in next(iter(by_lr.values())):
        table.add_row(name, *(form(row[name]) for row in by_lr.values()))
    console.print(table)
