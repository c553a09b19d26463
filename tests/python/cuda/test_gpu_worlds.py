"""The worlds that tests/gpu/run starts on a GPU, on the fake one: whatever they find later, they run."""

from __future__ import annotations

import pytest

from gpu import link
from gpu.worlds.launch import launch
from python.cuda import worlds as cuda_worlds

pytestmark = [pytest.mark.processes, cuda_worlds.needs_fake_gpu]


@pytest.mark.parametrize("names", [("collectives", "profile"), ("training",), ("killed",)])
def test_worlds(names: tuple[str, ...]) -> None:
    assert launch(names, "fake", short="training" not in names) == 0


def test_a_link() -> None:
    assert link.with_fake_gpu() == 0
