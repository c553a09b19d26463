"""When tests of the backend's half for CUDA run."""

from collections.abc import Callable

import pytest
import torch

from isthmus._build_info import CUDA
from support import fake_gpu

reason = fake_gpu.why_not() or ("" if CUDA else "isthmus was built without CUDA")
needs_fake_gpu = pytest.mark.skipif(bool(reason), reason=reason)


def on_fake_gpu(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that has ranks with the fake GPU."""
    return pytest.mark.processes(needs_fake_gpu(test))


def training_step(model: torch.nn.Module, features: int) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        loss = model(torch.ones(2, features, device="cuda")).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
