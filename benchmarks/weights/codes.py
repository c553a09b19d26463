"""What a step of training costs under several codes, in bits of an element: Isthmus's, and what it is compared with."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import zstandard

from isthmus import native

Words = npt.NDArray[np.int64]

_BITMAP_CODE_BITS = 4
_BITMAP_LARGEST = 7  # a code holds -7 to 7; the one that is left says that the new pattern follows


@dataclass(frozen=True)
class Format:
    """A floating-point type as bits."""

    dtype: torch.dtype
    bits: int
    mantissa_bits: int

    def exponents(self, patterns: Words) -> Words:
        """The exponent fields."""
        return (patterns >> self.mantissa_bits) & ((1 << (self.bits - 1 - self.mantissa_bits)) - 1)


FORMATS = {
    "bf16": Format(torch.bfloat16, 16, 7),
    "fp16": Format(torch.float16, 16, 10),
    "fp32": Format(torch.float32, 32, 23),
}


@dataclass(frozen=True)
class Step:
    """Weights before and after a step, in the type in which they are gathered."""

    before: torch.Tensor
    after: torch.Tensor
    format: Format

    def patterns(self, weights: torch.Tensor) -> Words:
        """As unsigned integers."""
        unsigned = {16: np.uint16, 32: np.uint32}[self.format.bits]
        return weights.view(torch.uint8).numpy().view(unsigned).astype(np.int64)

    @property
    def difference(self) -> Words:
        """In units in the last place: of patterns as integers in the order of their values."""
        return self._ordered(self.after) - self._ordered(self.before)

    @property
    def old_exponents(self) -> Words:
        """What both ends know of each element."""
        return self.format.exponents(self.patterns(self.before))

    def _ordered(self, weights: torch.Tensor) -> Words:
        patterns, sign = self.patterns(weights), 1 << (self.format.bits - 1)
        return np.where(patterns & sign, -(patterns & (sign - 1)) - 1, patterns)


def _entropy(symbols: Words) -> float:
    """Of independent draws, bits of a symbol."""
    _, counts = np.unique(symbols, return_counts=True)
    shares = counts / counts.sum()
    return float(-(shares * np.log2(shares)).sum())


def unchanged_share(step: Step) -> float:
    """Of elements that are what they were, bit for bit."""
    return float((step.difference == 0).mean())


def isthmus_bits(step: Step) -> float:
    """What weights=delta sends, side information included. Decodes it, too: RuntimeError if a bit is wrong."""
    core = native.load()
    packet = core.encode_weights(step.before, step.after)
    replica = step.before.clone()
    if packet.numel():
        core.decode_weights(packet, replica)
    if not torch.equal(replica.view(torch.uint8), step.after.view(torch.uint8)):
        raise RuntimeError("weights that were decoded have other bits than those that were encoded")
    return 8 * float(packet.numel()) / step.after.numel()


def _entropy_given_exponent(step: Step) -> float:
    difference, exponents = step.difference, step.old_exponents
    return sum(
        float((exponents == exponent).mean()) * _entropy(difference[exponents == exponent])
        for exponent in np.unique(exponents)
    )


def _bitmap_bits(step: Step) -> float:
    size = np.abs(step.difference)
    codes = _BITMAP_CODE_BITS * float((size > 0).mean())
    return 1 + codes + step.format.bits * float((size > _BITMAP_LARGEST).mean())


def _zstd_bits(step: Step) -> float:
    """Zigzag differences, their bytes apart from each other."""
    difference = step.difference
    zigzag = (2 * np.abs(difference) - (difference < 0)).astype(np.uint64)
    split = zigzag.view(np.uint8).reshape(-1, 8)[:, : step.format.bits // 8 + 1].T.copy()
    compressed = zstandard.ZstdCompressor(level=1).compress(split.tobytes())
    return 8 * len(compressed) / len(difference)


def _exponent_bits(step: Step) -> float:
    """Without what was sent before: exponents at their entropy, sign and mantissa as they are."""
    return _entropy(step.format.exponents(step.patterns(step.after))) + 1 + step.format.mantissa_bits


#: By what a report calls them.
CODES: dict[str, Callable[[Step], float]] = {
    "entropy": lambda step: _entropy(step.difference),
    "entropy given the old exponent": _entropy_given_exponent,
    "isthmus": isthmus_bits,
    "bitmap and 4-bit codes": _bitmap_bits,
    "zstd -1 of differences": _zstd_bits,
    "plain weights, exponents coded": _exponent_bits,
}
