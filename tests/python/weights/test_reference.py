import numpy as np
import pytest
import torch

from isthmus.weights import encode
from python.weights.reference import decoded
from support.updates import RECORD_HEAD, parts_of

BLOCK = 16_384


def patterns(tensor: torch.Tensor) -> np.ndarray:
    return tensor.view(torch.int16).numpy().view(np.uint16)


@pytest.mark.parametrize(("dtype", "mantissa_bits"), [(torch.bfloat16, 7), (torch.float16, 10)])
@pytest.mark.parametrize("numel", [1, 15, 16, 63, 64, 65, 5000, BLOCK, BLOCK + 1])
@pytest.mark.parametrize("distance", [1e-7, 1e-5, 1e-4, 1e-3, 1.0])
def test_blocks_are_those_of_the_document(dtype: torch.dtype, mantissa_bits: int, numel: int, distance: float) -> None:
    generator = torch.Generator().manual_seed(numel)
    master = 0.02 * torch.randn(numel, generator=generator)
    master[::97] = 0
    old = master.to(dtype)
    new = (master + distance * torch.randn(numel, generator=generator)).to(dtype)
    new[numel // 2] = float("nan") if distance == 1e-3 else -0.0
    packet = parts_of(encode(old, new))[1][RECORD_HEAD:]
    place = 4 * -(-numel // BLOCK)
    found = patterns(old).copy()
    for first in range(0, numel, BLOCK):
        size = int.from_bytes(packet[first // BLOCK * 4 :][:4], "little")
        here = slice(first, min(first + BLOCK, numel))
        block, whole = packet[place : place + size], 2 * (here.stop - here.start)
        if size == whole:
            found[here] = np.frombuffer(block, np.uint16)
        elif size > 0:
            found[here] = decoded(block, patterns(old)[here], mantissa_bits)
        place += size + size % 2
    assert (found == patterns(new)).all()
