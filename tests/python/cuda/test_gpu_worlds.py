"""Worlds that tests/gpu/run starts on a GPU, on the fake one, which captures no graph."""

from __future__ import annotations

import pytest

from gpu.worlds.launch import launch
from python.cuda import worlds as cuda_worlds


@pytest.mark.processes
@cuda_worlds.needs_fake_gpu
@pytest.mark.parametrize(("names", "short"), [(("collectives", "profile"), True), (("training",), False)])
def test_worlds(names: tuple[str, ...], short: bool) -> None:
    assert launch(names, short=short, fake=True) == 0
