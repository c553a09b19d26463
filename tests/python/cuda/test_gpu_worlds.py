"""A world that tests/gpu/run starts on a GPU, on the fake one: models that train with CUDA tensors."""

from __future__ import annotations

import pytest

from gpu.worlds.launch import launch
from python.cuda import worlds as cuda_worlds


@pytest.mark.processes
@cuda_worlds.needs_fake_gpu
def test_training() -> None:
    assert launch(("training",), "fake", short=False) == 0
