"""Trains, replays steps at several learning rates, and codes the last one of each."""

import time
from collections.abc import Callable, Iterator
from statistics import fmean
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from isthmus import native
from isthmus.benchmarks.common.data import Text, default_files
from isthmus.benchmarks.common.fsdp import make_adamw
from isthmus.benchmarks.common.machine import machine, versions
from isthmus.benchmarks.common.model import ByteGpt, loss_of
from isthmus.benchmarks.weights.codes import CODES, FORMATS, Step, unchanged_share
from isthmus.benchmarks.weights.config import WeightsConfig

_TRAINING_LR = 1e-3
_POINT_DISTANCE = 25  # steps
_TIMED_ELEMENTS = 1 << 24
_TIMED_TURNS = 7

#: Of each parameter.
Tensors = list[torch.Tensor]


def run_weights(config: WeightsConfig, console: Console) -> dict[str, Any]:
    """Measure. Everything runs in this process, on one thread but for training itself."""
    rows: dict[float, dict[str, list[float]]] = {lr: {} for lr in config.lr}
    timed: dict[float, Step] = {}
    with console.status("training"):
        for start, directions in _points(config):
            for lr in config.lr:
                step = _replay(start, directions, lr, config)
                rows[lr].setdefault("unchanged", []).append(unchanged_share(step))
                for name, bits in CODES.items():
                    rows[lr].setdefault(name, []).append(bits(step))
                timed[lr] = step
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with console.status("timing"):
        speeds = {lr: _speeds(step) for lr, step in timed.items()}
    torch.set_num_threads(threads)
    return {
        "benchmark": "weights",
        "arguments": {name: getattr(config, name) for name in WeightsConfig.__dataclass_fields__},
        "machine": machine(),
        "versions": versions(),
        "fields": {
            "bits": "of an element, a mean over points of training; unchanged: a share",
            "speeds": "GB/s of source, on one core, the best of several turns; memcpy: of as many bytes",
        },
        "bits": {str(lr): {name: fmean(values) for name, values in row.items()} for lr, row in rows.items()},
        "speeds": {str(lr): row for lr, row in speeds.items()},
    }


def _points(config: WeightsConfig) -> Iterator[tuple[Tensors, list[Tensors]]]:
    """Weights at some points of a training run, scaled, and the directions of the optimizer's steps from there."""
    torch.manual_seed(config.seed)
    model = ByteGpt(config.shape)
    text = Text(default_files(), config.shape.context, config.seed)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = make_adamw(parameters, _TRAINING_LR)
    number = 0

    def step() -> None:
        nonlocal number
        for group in optimizer.param_groups:
            group["lr"] = _TRAINING_LR * min(1.0, (number + 1) / 20)
        loss_of(model, text.batch(number, 0, config.sequences)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        number += 1

    for index in range(config.points):
        for _ in range(config.steps if index == 0 else _POINT_DISTANCE):
            step()
        start = [_scaled(parameter.detach(), config.std) for parameter in parameters]
        directions = []
        for _ in range(config.replayed):
            before = [parameter.detach().clone() for parameter in parameters]
            step()
            pairs = zip(parameters, before, strict=True)
            directions.append([(after.detach() - old) / _TRAINING_LR for after, old in pairs])
        yield start, directions


def _scaled(weights: torch.Tensor, std: float) -> torch.Tensor:
    """Matrices at the scale of large models; gains of norms stay at 1."""
    is_matrix = weights.dim() > 1 and std > 0
    return weights * (std / float(weights.std())) if is_matrix else weights.clone()


def _replay(start: Tensors, directions: list[Tensors], lr: float, config: WeightsConfig) -> Step:
    """The last of the steps, as weights are gathered: all parameters, one behind the other."""
    weights = [tensor.clone() for tensor in start]
    form = FORMATS[config.dtype]
    gathered = []
    for moves in directions:
        gathered.append(torch.cat([tensor.flatten() for tensor in weights]).to(form.dtype))
        for tensor, move in zip(weights, moves, strict=True):
            tensor.add_(move, alpha=lr)
    return Step(gathered[-1], torch.cat([tensor.flatten() for tensor in weights]).to(form.dtype), form)


def _speeds(step: Step) -> dict[str, float]:
    core = native.load()
    times = max(1, _TIMED_ELEMENTS // step.after.numel())
    before, after = step.before.repeat(times), step.after.repeat(times)
    packet = core.encode_weights(before, after)
    target, replica = torch.empty_like(after), before.clone()
    num_bytes = after.numel() * after.element_size()

    def decode() -> None:
        replica.copy_(before)
        core.decode_weights(packet, replica)

    copied_s = _seconds(lambda: target.copy_(after))
    return {
        "encode_gb_s": num_bytes / _seconds(lambda: core.encode_weights(before, after)) / 1e9,
        "decode_gb_s": num_bytes / (_seconds(decode) - copied_s) / 1e9,
        "compare_gb_s": num_bytes / _seconds(lambda: core.encode_weights(after, after)) / 1e9,
        "memcpy_gb_s": num_bytes / copied_s / 1e9,
    }


def _seconds(action: Callable[[], Any]) -> float:
    seconds = []
    for _ in range(_TIMED_TURNS):
        start_s = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - start_s)
    return min(seconds)


def print_weights(report: dict[str, Any], console: Console) -> None:
    """Two tables: bits, and speed."""
    bits, speeds = report["bits"], report["speeds"]
    console.print(_table("bits of an element", bits, ".3f"))
    console.print(_table("one core, GB/s of source", speeds, ".2f"))


def _table(title: str, by_lr: dict[str, dict[str, float]], form: str) -> Table:
    table = Table("learning rate", *by_lr, title=title)
    for name in next(iter(by_lr.values())):
        table.add_row(name.removesuffix("_gb_s"), *(format(row[name], form) for row in by_lr.values()))
    return table
