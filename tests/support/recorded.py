"""What tests/cpp/codec/test_recorded.cpp recorded of ranks in one process, for comparison with real processes.

Inputs are made here as there, number by number, and results are hashed as there.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from support.places import ROOT

RECORD = ROOT / "tests/cpp/codec/recorded.txt"
STEPS = 3
CHUNK = 4096 + 4096 + 708
_MASK = (1 << 64) - 1


class Hash:
    """FNV-1a of 64 bits."""

    def __init__(self) -> None:
        self._value = 0xCBF29CE484222325

    def add(self, data: bytes) -> None:
        value = self._value
        for byte in data:
            value = (value ^ byte) * 0x100000001B3 & _MASK
        self._value = value

    def digest(self) -> bytes:
        """Return the hash, its lowest byte first."""
        return self._value.to_bytes(8, "little")


def results(nodes: str, dtype: str) -> dict[str, str]:
    """Return the hashes of results, in hexadecimal digits, by settings."""
    found = {}
    for line in RECORD.read_text().splitlines():
        settings, of_nodes, of_dtype, _, of_results = line.split()
        if (of_nodes, of_dtype) == (nodes, f"{dtype}:"):
            found[settings] = of_results
    return found


def options_of(settings: str) -> dict[str, Any]:
    """Return the keywords of isthmus.Options that "bits=2,error_feedback=on" stands for."""
    pairs = [] if settings == "default" else [part.split("=") for part in settings.split(",")]
    return {name: _value_of(text) for name, text in pairs}


def _value_of(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    if text.isdigit():
        return int(text)
    return float(text) if text[0].isdigit() else text


@cache
def gradient(num_elements: int, seed: int) -> torch.Tensor:
    """Return the float32 input of that seed. It is not to be changed."""
    numbers = _mt19937_64(seed, num_elements)
    return torch.tensor([(bits % 2001 - 1000) / (1 << (bits >> 40) % 11) for bits in numbers])


def _mt19937_64(seed: int, count: int) -> list[int]:
    """Return the first numbers of C++'s std::mt19937_64 (Nishimura, ACM TOMACS 10(4), 2000)."""
    size, middle = 312, 156
    state = [seed]
    for i in range(1, size):
        state.append((6364136223846793005 * (state[-1] ^ (state[-1] >> 62)) + i) & _MASK)
    numbers: list[int] = []
    while len(numbers) < count:
        for i in range(size):
            both = (state[i] & 0xFFFFFFFF80000000) | (state[(i + 1) % size] & 0x7FFFFFFF)
            state[i] = state[(i + middle) % size] ^ (both >> 1) ^ (0xB5026F5AA96619E9 if both & 1 else 0)
        for word in state:
            word ^= (word >> 29) & 0x5555555555555555
            word ^= (word << 17) & 0x71D67FFFEDA60000
            word ^= (word << 37) & 0xFFF7EEE000000000
            numbers.append(word ^ (word >> 43))
    return numbers[:count]
