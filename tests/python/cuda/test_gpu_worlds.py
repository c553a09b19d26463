"""The worlds that tests/gpu/run starts on a GPU, on the fake one: whatever they find later, they run."""

from __future__ import annotations

import pytest

from gpu.worlds.launch import launch
from python.cuda import worlds as cuda_worlds

pytestmark = [pytest.mark.processes, cuda_worlds.needs_fake_gpu]


@pytest.mark.parametrize("name", ["collectives", "training", "profile", "killed"])
def test_a_world(name: str) -> None:
    assert launch(name, "fake", short=name != "training") == 0
