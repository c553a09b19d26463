"""The rotated code in docs/related.md is what codec `quant` does."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.distributed as dist

import isthmus
from support import ranks
from support.documents import programs

pytestmark = pytest.mark.processes

BITS = (1, 2, 3, 4)
NUM_GROUPS = 64
NUM_ELEMENTS = 128 * NUM_GROUPS
OF_64_BITS = (1 << 64) - 1
Rows = npt.NDArray[np.float64]


def rows_of_gradients() -> Rows:
    rows = np.random.default_rng(1).standard_normal((NUM_GROUPS, 128)) ** 3
    return rows.astype(np.float32).astype(np.float64)


def received(rank: int, world_size: int, bits: int) -> Rows:
    """Reduce zeros of rank 0 and the rows of rank 1: what rank 0 gets is what arrives of these."""
    ranks.init(pg_options=isthmus.Options(nodes="2x1", bits=bits, min_elements=0))
    gradient = torch.zeros(world_size * NUM_ELEMENTS)
    if rank == 1:
        gradient[:NUM_ELEMENTS] = torch.from_numpy(rows_of_gradients()).flatten()
    shard = torch.empty(NUM_ELEMENTS)
    with isthmus.unit("x"):
        dist.reduce_scatter_tensor(shard, gradient)
    dist.destroy_process_group()
    return shard.numpy().astype(np.float64).reshape(-1, 128)


def mix(x: int) -> int:
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & OF_64_BITS
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & OF_64_BITS
    return x ^ (x >> 31)


def signs_of_first_packet() -> Rows:
    """The signs that node 1 draws in the first step of unit "x": docs/packet_format.md."""
    hashed = 0xCBF29CE484222325  # FNV-1a, of elements, float32, reduce-scatter, no layout, and the name
    for byte in struct.pack("<qBBQ", 2 * NUM_ELEMENTS, 1, 0, 0) + b"x":
        hashed = (hashed ^ byte) * 0x100000001B3 & OF_64_BITS
    seed = mix(mix(hashed ^ 0xD1342543DE82EF95) + (1 << 8) & OF_64_BITS)
    signs = np.empty((NUM_ELEMENTS // 512, 32, 16))
    for block in range(len(signs)):
        for column in range(16):
            word = mix(seed + 0x9E3779B97F4A7C15 * (8 * block + column // 2 + 1) & OF_64_BITS) >> 32 * (column % 2)
            signs[block, :, column] = [-1 if word >> row & 1 else 1 for row in range(32)]
    return signs.reshape(-1, 128)


@pytest.mark.parametrize("bits", BITS)
def test_the_rotated_code_is_what_arrives_over_the_backend(bits: int) -> None:
    shown: dict[str, Any] = {}
    exec(programs("docs/related.md")["rotated.py"], shown)
    expected = shown["arrives"](rows_of_gradients(), signs_of_first_packet(), bits)
    arrived = ranks.run(received, 2, bits)[0]
    np.testing.assert_allclose(arrived, expected, rtol=2**-8)  # scales cross as bfloat16
