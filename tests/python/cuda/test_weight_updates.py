"""Updates of CUDA tensors use the current stream alone, on the fake GPU. What comes out: gpu.worlds.collectives."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch

from isthmus.weights import apply, encode
from python.cuda import worlds as cuda_worlds
from support import fake_gpu
from support.gpu_trace import Trace, traced

pytestmark = [pytest.mark.processes, cuda_worlds.needs_fake_gpu]


def trace_of_an_update(rank: int, world_size: int) -> tuple[str, int]:
    """The trace, and the current stream."""
    old = torch.linspace(-1, 1, 20_001, device="cuda").bfloat16()
    new = old * 1.01
    results = []
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace"
        traced(path, lambda: results.append(apply(old, encode(old, new))))
        assert torch.equal(results[0], new)
        return path.read_text(), stream.cuda_stream


def test_all_is_on_the_current_stream() -> None:
    text, stream = fake_gpu.run(trace_of_an_update, 1)[0]
    trace = Trace(text)
    assert len(trace.named("encode weights")) == 2  # the second for the old bits' checksum
    assert len(trace.named("decode weights")) == 1
    assert {work.stream for work in trace.works} == {stream}
    assert not trace.conflicts()
