"""The checks of tests/python/backend/test_gradients.py, with tensors on a fake GPU."""

from __future__ import annotations

import pytest
import torch

from python.backend import test_gradients
from python.backend.gradients import WORLD_SIZE, run_table
from python.cuda import worlds as cuda_worlds
from support import fake_gpu
from support.checks import Table

pytestmark = [pytest.mark.processes, cuda_worlds.needs_fake_gpu]

ORDER = "NCCL's sums are made in another order than Gloo's"
# What is otherwise on a GPU. test_works.py has the like of it.
OTHERWISE = {
    "what_is_no_sum_of_floats_is_exact": ORDER,
    "an_unlabelled_reduction_inside_a_backward_pass_is_exact": ORDER,
}
table = Table()
table.checks |= {name: check for name, check in test_gradients.table.checks.items() if name not in OTHERWISE}


def main(rank: int, world_size: int) -> dict[str, str]:
    torch.set_default_device("cuda")
    return run_table(table)


test_gradient = table.in_world(main, WORLD_SIZE, run=fake_gpu.run)
