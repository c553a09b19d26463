#!/usr/bin/env python3
"""Print kernels/weights/laws.h: how often each token of a weight difference comes, under each law.

Moves are taken to be logistic, with a mean size of 2^s units in the last place, and the value before rounding to lie
anywhere within its unit. The numbers are part of the wire format: changing one needs a new version of the packet.
"""

import numpy as np
from scipy.special import expit

TOKENS, ESCAPE, NO_CHANGE, SLOTS = 32, 31, 15, 1024
SMALL_SIZES = range(-9, 2)  # a law each: tokens are steps of one unit
COARSE_SIZES = range(2, 6)  # one law: of 2^(s-1) units
NUM_EXPONENT_LAWS = 4
# A token of frequency 0 becomes an escape, of some 32 bits more; one of 1 costs all others 1.44 / 1024 bits.
LEAST_SHARE = 0.05 / SLOTS


def main() -> None:
    """Print the header."""
    laws = [_steps(size, 1) for size in SMALL_SIZES]
    laws.append(np.mean([_steps(size, 2 ** (size - 1)) for size in COARSE_SIZES], axis=0))
    laws += [_exponents(index) for index in range(NUM_EXPONENT_LAWS)]
    print(_HEADER)
    for law in laws:
        text = ", ".join(str(frequency) for frequency in _frequencies(law))
        print(f"    {{{text}}},")
    print(_FOOTER)


def _cumulative(moves: np.ndarray, size: float) -> np.ndarray:
    """Share of moves below, where their mean absolute value is 2^size."""
    return expit(moves * (2 * np.log(2)) / 2.0**size)


def _steps(size: int, unit: int) -> np.ndarray:
    """Share of each token where it counts steps of `unit` units in the last place, rounded down."""
    phases = (np.arange(256) + 0.5) / 256 - 0.5
    shares = np.zeros(TOKENS)
    for token in range(ESCAPE):
        first = (token - NO_CHANGE) * unit
        above = _cumulative(first + unit - 0.5 - phases, size)
        shares[token] = np.mean(above - _cumulative(first - 0.5 - phases, size))
    return _with_escapes(shares)


def _exponents(index: int) -> np.ndarray:
    """Share of each pair of new exponent and sign, where moves are about as large as old values, or larger.

    In units of the old value's binade, [1, 2): moves have a mean size of 2^(index - 1), and those of the last law any
    larger one, each half as often as the one before.
    """
    sizes = (
        [(index - 1, 1.0)] if index < NUM_EXPONENT_LAWS - 1 else [(index - 1 + i, 0.5 ** (i + 1)) for i in range(12)]
    )
    old = 1 + (np.arange(512) + 0.5) / 512
    shares = np.zeros(TOKENS)
    for size, weight in sizes:
        for below in range(NO_CHANGE):
            exponent = size + 3 - below  # of 2
            low, high = 2.0**exponent, 2.0 ** (exponent + 1)
            keeps = _cumulative(high - old, size) - _cumulative(low - old, size)
            flips = _cumulative(-low - old, size) - _cumulative(-high - old, size)
            shares[2 * below] += weight * np.mean(keeps)
            shares[2 * below + 1] += weight * np.mean(flips)
    return _with_escapes(shares / sum(weight for _, weight in sizes))


def _with_escapes(shares: np.ndarray) -> np.ndarray:
    shares = np.where(shares >= LEAST_SHARE, shares, 0)
    shares[ESCAPE] = max(1 - shares.sum(), LEAST_SHARE)
    return shares / shares.sum()


def _frequencies(shares: np.ndarray) -> list[int]:
    """Whole numbers in proportion that sum up to SLOTS; at least 1 where the share is not 0."""
    frequencies = np.where(shares > 0, np.maximum(1, np.floor(shares * SLOTS)), 0).astype(int)
    while frequencies.sum() != SLOTS:
        step = 1 if frequencies.sum() < SLOTS else -1
        # What the mean length of a symbol gains or loses by one more or less.
        allowed = (frequencies > 0) if step > 0 else (frequencies > 1)
        after = np.where(allowed, frequencies + step, 1)
        gain = np.where(allowed, shares * np.log(after / np.maximum(frequencies, 1)), -np.inf)
        frequencies[np.argmax(gain)] += step
    return [int(frequency) for frequency in frequencies]


_HEADER = """\
// How often each token comes, of 1024, under each law. Part of the wire format. Made by tools/weight_laws.py.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/weights/layout.h"

namespace isthmus::kernels {

// clang-format off
inline constexpr std::array<std::array<uint16_t, kWeightTokens>, kWeightLaws> kWeightFrequencies{{"""
_FOOTER = """\
}};
// clang-format on

}  // namespace isthmus::kernels"""


if __name__ == "__main__":
    main()
