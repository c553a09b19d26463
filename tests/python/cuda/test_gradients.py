"""The checks of test_backend_gradients.py, with tensors on a fake GPU."""

from __future__ import annotations

import pytest
import torch

from python.backend import test_gradients as on_cpu
from python.cuda import worlds as cuda_worlds
from support import fake_gpu
from support.checks import World

pytestmark = [pytest.mark.processes, cuda_worlds.needs_fake_gpu]

ORDER = "NCCL's sums are made in another order than Gloo's"
# What is otherwise on a GPU. test_cuda_backend.py has the like of it.
OTHERWISE = {
    "codec_none_in_flat_tiers_sums_within_its_bound": "tiers='flat' is for the CPU",
    "codec_none_sums_within_its_bound": "NCCL takes a factor in a tensor only if it has the type of the summands",
    "processes_have_the_bits_of_ranks_in_one_process": "ranks in one process reduce on the CPU",
    "what_is_no_sum_of_floats_is_exact": ORDER,
    "an_unlabelled_reduction_inside_a_backward_pass_is_exact": ORDER,
    "uneven_nodes_and_one_node_are_exact": ORDER,
}


def main(rank: int, world_size: int) -> dict[str, str]:
    torch.set_default_device("cuda")
    for name in OTHERWISE:
        del on_cpu.table.checks[name]
    return on_cpu.main(rank, world_size)


@pytest.fixture(scope="module")
def world() -> World:
    return World(main, on_cpu.WORLD_SIZE, run=fake_gpu.run)


@pytest.mark.parametrize("name", [name for name in on_cpu.table.names if name not in OTHERWISE])
def test_gradient(world: World, name: str) -> None:
    world.check(name)
