"""isthmus._C.encode_weights and decode_weights: what weights become when they cross as differences."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import isthmus
from isthmus import native as _native

INTEGERS = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32}
DTYPES = (*INTEGERS, torch.float64)
BLOCK = 16384


def encode(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    packet: torch.Tensor = _native.load().encode_weights(before, after)
    return packet


def decode(packet: torch.Tensor, weights: torch.Tensor) -> None:
    _native.load().decode_weights(packet, weights)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8)


def patterns(dtype: torch.dtype, num_elements: int, seed: int) -> torch.Tensor:
    """Return any bits at all: numbers of all sizes, infinities and NaNs with what they carry."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (num_elements * dtype.itemsize,), dtype=torch.uint8, generator=generator).view(dtype)


def changed_in(share: float, before: torch.Tensor, seed: int) -> torch.Tensor:
    """Return `before` with other bits in about this share of its elements."""
    generator = torch.Generator().manual_seed(seed)
    where = torch.rand(before.shape, generator=generator) < share
    return torch.where(where, patterns(before.dtype, before.numel(), seed + 1), before)


def moved(distance: float, before: torch.Tensor, seed: int) -> torch.Tensor:
    """Return `before` after something like an optimizer's step."""
    generator = torch.Generator().manual_seed(seed)
    step = distance * torch.randn(before.shape, generator=generator)
    return (before.double() + step.double()).to(before.dtype)


@given(
    dtype=st.sampled_from(list(INTEGERS)),
    num_elements=st.one_of(st.integers(0, 40_000), st.sampled_from([1, 15, 16, 17, BLOCK - 1, BLOCK, BLOCK + 1])),
    share=st.sampled_from([0.0, 1e-4, 0.03, 1.0]),
    seed=st.integers(0, 2**31),
)
def test_any_bits_come_back(dtype: torch.dtype, num_elements: int, share: float, seed: int) -> None:
    before = patterns(dtype, num_elements, seed)
    after = changed_in(share, before, seed + 1)
    packet = encode(before, after)
    assert packet.dtype == torch.uint8 and packet.numel() % 8 == 0
    assert packet.numel() <= 1.01 * after.nbytes + 64
    if torch.equal(bits(before), bits(after)):
        assert packet.numel() == 0
        return
    received = before.clone()
    decode(packet, received)
    assert torch.equal(bits(received), bits(after))


def test_small_moves_take_few_bits() -> None:
    before = (0.02 * torch.randn(4 * BLOCK, generator=torch.Generator().manual_seed(0))).bfloat16()
    assert encode(before, moved(1e-4, before, 1)).numel() < before.numel() / 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_both_zeros_and_nans_are_told_apart(dtype: torch.dtype) -> None:
    before = torch.tensor([0.0, -0.0, float("nan"), float("inf"), 1.0], dtype=dtype)
    after = torch.tensor([-0.0, 0.0, float("inf"), float("nan"), 1.0], dtype=dtype)
    bits(after)[-1] ^= 1  # the lowest byte of no number; of a number: another one
    packet = encode(before, after)
    received = before.clone()
    decode(packet, received)
    assert torch.equal(bits(received), bits(after))


WEIGHTS = torch.ones(8)
NOT_WEIGHTS = {
    "whole numbers": torch.ones(8, dtype=torch.int32),
    "bytes": torch.ones(8, dtype=torch.uint8),
    "complex": torch.ones(8, dtype=torch.complex64),
    "not contiguous": torch.ones(16)[::2],
    "elsewhere": torch.ones(8, device="meta"),
}


@pytest.mark.parametrize("name", NOT_WEIGHTS)
def test_what_no_weights_are_is_refused(name: str) -> None:
    text = "expected a contiguous tensor of floating-point numbers on the CPU"
    for before, after in ((WEIGHTS, NOT_WEIGHTS[name]), (NOT_WEIGHTS[name], WEIGHTS)):
        with pytest.raises(ValueError, match=text):
            encode(before, after)
    with pytest.raises(ValueError, match=text):
        decode(encode(WEIGHTS, 2 * WEIGHTS), NOT_WEIGHTS[name])


@pytest.mark.parametrize("other", [torch.ones(9), torch.ones(0), torch.ones(8, dtype=torch.float64)])
def test_weights_of_other_types_and_sizes_are_refused(other: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="expected two tensors of one type and size"):
        encode(WEIGHTS, other)


@pytest.mark.parametrize("dtype", DTYPES)
def test_damaged_packets_are_refused_or_make_other_weights(dtype: torch.dtype) -> None:
    """Packets are sent with a checksum; what gets past it may give other weights, and nothing worse."""
    before = patterns(dtype, 3 * BLOCK // 2, 1)
    after = changed_in(0.03, before, 2)
    packet = encode(before, after)
    refused = 0
    for damaged in (packet[:-8], packet[: packet.numel() // 2], torch.cat([packet, packet[:8]])):
        with pytest.raises(isthmus.PacketError, match="corrupt packet of weights"):
            decode(damaged, before.clone())
    for place in range(0, packet.numel(), max(1, packet.numel() // 50)):
        damaged = packet.clone()
        damaged[place] ^= 1
        received = before.clone()
        try:
            decode(damaged, received)
        except isthmus.PacketError:
            refused += 1
    assert refused > 0
