"""What a step of training costs to send: by isthmus.weights, by its peers, as changed elements; bits and speeds."""

from copy import deepcopy
from dataclasses import asdict
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from isthmus import weights
from isthmus.benchmarks.common.data import Text, default_files
from isthmus.benchmarks.common.fsdp import make_adamw
from isthmus.benchmarks.common.model import ByteGpt, loss_of
from isthmus.benchmarks.common.report import print_machine, report_head
from isthmus.benchmarks.weights.config import WeightsConfig
from isthmus.benchmarks.weights.methods import speeds
from isthmus.plan.report import figures_table

_LR_BEFORE = 1e-3
FIELDS = {
    "lr": "at each learning rate bits an element of bfloat16 that the last step takes",
    "speeds": "at each learning rate bits, and GB/s of bfloat16 of processor time, of all weights as one tensor",
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
        other = deepcopy(self)
        for group in other._optimizer.param_groups:
            group["lr"] = lr
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
    print_machine(console)
    with console.status("training"):
        before = _Training(config)
        for _ in range(config.steps):
            before.take_step()
    rows, of_methods = {}, {}
    for lr in config.lr:
        with console.status(f"learning rate {lr:g}"):
            training = before.at(lr)
            for _ in range(config.steps_at_lr):
                old = training.sent()
                training.take_step()
            new = training.sent()
            rows[f"{lr:g}"] = _measured(old, new)
            of_methods[f"{lr:g}"] = speeds(_flat(old), _flat(new))
    return {**report_head(), "arguments": asdict(config), "fields": FIELDS, "lr": rows, "speeds": of_methods}


def _measured(old: Weights, new: Weights) -> dict[str, float]:
    update = weights.encode(old, new)
    result = weights.apply(old, update)
    if any(not torch.equal(result[name].view(torch.int16), new[name].view(torch.int16)) for name in new):
        raise RuntimeError("weights came out with other bits than those that were encoded")
    before, after = _patterns(old), _patterns(new)
    xor = before ^ after
    (places,) = xor.nonzero(as_tuple=True)
    gaps = places.diff(prepend=torch.tensor([-1])).int()
    bytes_of = {
        "isthmus.weights": len(update),
        "XOR, bytes apart, zstd -3": _zstd_bytes(xor),
        "gap and value, bytes apart, zstd -3": sum(map(_zstd_bytes, (gaps, after[places]))),
    }
    bits = {name: 8 * num_bytes / after.numel() for name, num_bytes in bytes_of.items()}
    return {"unchanged elements, a share": 1 - len(places) / after.numel(), **bits}


def _flat(tensors: Weights) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors.values()])


def _patterns(tensors: Weights) -> Tensor:
    return _flat(tensors).view(torch.int16)


def _zstd_bytes(words: Tensor) -> int:
    """Of what zstd makes of these, all first bytes before all second ones."""
    import zstandard

    bytes_apart = words.view(torch.uint8).view(-1, words.element_size()).t().contiguous()
    return len(zstandard.ZstdCompressor(level=3).compress(bytes_apart.numpy().tobytes()))


def print_weights(report: dict[str, Any], console: Console) -> None:
    """Print methods by learning rates."""
    by_lr = report["lr"]
    table = figures_table("", "Bits an element of a step of AdamW in bfloat16, by learning rate", [*by_lr])
    for name in next(iter(by_lr.values())):
        table.add_row(name, *(f"{row[name]:.3f}" for row in by_lr.values()))
    console.print(table)
    of_methods = report["speeds"]
    speeds_table = figures_table("", "Bits, and GB/s to encode and to apply", [*of_methods])
    for name in next(iter(of_methods.values())):
        figures = (of_methods[lr][name] for lr in of_methods)
        cells = (f"{one['bits']:.3f}  {one['encode GB/s']:.2f}  {one['apply GB/s']:.2f}" for one in figures)
        speeds_table.add_row(name, *cells)
    console.print(speeds_table)
