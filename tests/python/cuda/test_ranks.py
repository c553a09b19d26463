"""Whether the ranks of a group have GPUs: what they tell each other, and what they make of it."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
import torch

from isthmus.group import cuda as _cuda
from isthmus.group.agreement import Introduction
from isthmus.group.cuda import Gpu
from isthmus.group.nodes.node_map import told_by_ranks

HAS = Gpu(bus_id="0000:07:00.0")
NONE = Gpu(missing="torch sees no GPU")
OTHER_BUILD = Gpu(missing="isthmus was built without CUDA")


@pytest.mark.parametrize(
    ("gpus", "reason"),
    [
        ([HAS, HAS, Gpu()], ""),
        ([NONE, NONE, NONE], "torch sees no GPU"),
        ([HAS, NONE, HAS], "rank 5: torch sees no GPU"),
        ([NONE, OTHER_BUILD, NONE], "ranks 3, 9: torch sees no GPU; rank 5: isthmus was built without CUDA"),
    ],
)
def test_all_or_no_ranks_take_cuda_tensors(gpus: list[Gpu], reason: str) -> None:
    assert told_by_ranks([3, 5, 9], [gpu.missing for gpu in gpus]) == reason


def test_an_introduction_names_the_gpu() -> None:
    assert Introduction.from_text(json.dumps(asdict(Introduction(gpu=HAS))).encode()).gpu == HAS


def test_a_process_without_a_gpu_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert _cuda.find_gpu() in (NONE, OTHER_BUILD)
