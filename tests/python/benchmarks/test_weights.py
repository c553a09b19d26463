"""`isthmus bench weights`: its arguments, and a tiny run from end to end."""

import io

import pytest
import torch
from rich.console import Console

from isthmus.benchmarks.weights import run as bench
from isthmus.benchmarks.weights.config import WeightsConfig
from isthmus.benchmarks.weights.run import print_weights, run_weights
from python.benchmarks.bench_cli import refused

TINY = WeightsConfig(lr=(1e-6, 1e-2), steps=1, steps_at_lr=1, width=64, num_layers=1, sequences=1)


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ("--lr=0", "lr 0.0: expected above 0 and below 1"),
        ("--steps=0", "steps 0: expected 1 to 100000"),
        ("--width=65", "width 65: expected a multiple of 64"),
    ],
)
def test_arguments_are_checked(argument, says):
    assert says in refused("weights", argument)


def test_a_tiny_run():
    report = run_weights(TINY, Console(quiet=True))
    small, large = report["lr"]["1e-06"], report["lr"]["0.01"]
    assert 0 < large["unchanged elements, a share"] < small["unchanged elements, a share"] < 1
    for row in (small, large):
        assert len(row) == 4 and all(0 < bits < 16 for bits in row.values())
    printed = io.StringIO()
    print_weights(report, Console(file=printed, width=100))
    assert f"{large['isthmus.weights']:.3f}" in printed.getvalue()


def test_what_comes_out_is_compared(monkeypatch):
    monkeypatch.setattr(bench.weights, "apply", lambda old, update: {name: torch.zeros_like(old[name]) for name in old})
    with pytest.raises(RuntimeError, match="other bits"):
        run_weights(TINY, Console(quiet=True))
