"""A decoder of coded blocks of 16 bits, written from docs/packet_format.md to be read."""

import numpy as np

Bits = np.ndarray


class _Reader:
    def __init__(self, block: bytes) -> None:
        self.bits = np.unpackbits(np.frombuffer(block, np.uint8), bitorder="little")
        self.place = 0

    def take(self, count: int) -> Bits:
        self.place += count
        return self.bits[self.place - count : self.place].astype(bool)

    def number(self, count: int) -> int:
        return int(sum(int(bit) << place for place, bit in enumerate(self.take(count))))

    def string(self, count: int) -> Bits:
        if count < 16:
            return self.take(count)
        k, is_inverted = self.number(4), self.number(1) == 1
        if k == 0:
            bits = self.take(count)
        else:
            bits = np.zeros(count, bool)
            if k < 15:
                ones = np.flatnonzero(self.take(self.number(count.bit_length())))
                zeros = np.diff(ones, prepend=-1) - 1
                gaps = [(int(high) << k) + self.number(k) for high in zeros]
                bits[np.cumsum(np.array(gaps, int) + 1) - 1] = True
        return ~bits if is_inverted else bits


def _ordered(patterns: np.ndarray) -> np.ndarray:
    return np.where(patterns >> 15 == 1, patterns ^ 0x7FFF, patterns)


def decoded(block: bytes, old: np.ndarray, mantissa_bits: int) -> np.ndarray:
    """Return the new patterns of a block's elements, like the old ones of type uint16."""
    patterns = np.pad(old, (0, -len(old) % 64)).astype(int)
    reader = _Reader(block)
    shift = reader.number(2)
    classes = (patterns >> mantissa_bits) % 16 >> shift
    length = np.zeros(len(patterns), int)
    for number in range(16 >> shift):
        members = np.flatnonzero(classes == number)
        while len(members) and length[members[0]] < 16:
            members = members[reader.string(len(members))]
            length[members] += 1
    distance = np.where(length > 0, 1 << np.maximum(length - 1, 0), 0)
    is_down = np.zeros(len(patterns), bool)
    for first in range(0, len(patterns), 64):
        here = np.arange(first, first + 64)
        moved = here[length[here] > 0]
        is_down[moved] = reader.take(len(moved))
        for place in range(15):
            longer = here[length[here] >= place + 2]
            distance[longer] |= reader.take(len(longer)).astype(int) << place
    new = _ordered((_ordered(patterns) + np.where(is_down, -distance, distance)) % 65536)
    assert not reader.bits[reader.place :].any() and len(reader.bits) - reader.place < 16
    return new[: len(old)].astype(np.uint16)
