"""What the fuzzers of packets start from: choices by which each target makes a real packet, and damage to it.

A target reads its input with LLVM's FuzzedDataProvider: integers from the end of the input, each in as many bytes as
its range takes. A seed lists the same choices in the same order, for each combination of what steers the target.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

UNIT, STEP = 0x1122334455667788, 9
# Sizes: none, one, the edges of words, blocks and tiles; then sizes that few inputs have.
FEW = (0, 1, 7, 63, 64, 65, 128, 129, 300)
MANY = (513, 2048, 2049, 4097, 4999)


@dataclass(frozen=True)
class Seed:
    """An input as FuzzedDataProvider reads it."""

    integers: bytes = b""  # in the order of reading, each with its highest byte first
    rest: bytes = b""

    def integer(self, value: int, num_bytes: int) -> Seed:
        """ConsumeIntegral of a type with so many bytes."""
        return Seed(self.integers + value.to_bytes(num_bytes, "big"), self.rest)

    def one_of(self, index: int, count: int) -> Seed:
        """ConsumeIntegralInRange(0, count - 1), or PickValueInArray of so many values."""
        return self.integer(index % count, ((count - 1).bit_length() + 7) // 8)

    def size(self, num_elements: int, most: int) -> Seed:
        """consume_size."""
        is_many = num_elements > FEW[-1]
        return self.one_of(7 if is_many else 0, 8).one_of(num_elements, (most if is_many else FEW[-1]) + 1)

    def context(self) -> Seed:
        """The identity of a unit, and the step."""
        return self.integer(UNIT, 8).integer(STEP, 2)

    def __add__(self, later: Seed) -> Seed:
        return Seed(self.integers + later.integers, self.rest + later.rest)

    def __bytes__(self) -> bytes:
        return self.rest + self.integers[::-1]


def edit(kind: int, region: int, place: int) -> Seed:
    """The beginning of one edit of `damage`."""
    return Seed().integer(region << 4 | kind, 1).integer(place, 4)


def edits() -> list[Seed]:
    """Damage of every kind in every region, and none at all."""
    flips = [edit(0, region, place).integer(bit, 1) for region, place, bit in ((0, 77, 3), (1, 42, 0), (2, 130, 7))]
    words = [edit(kind, region, 9 * kind + region).integer(0x80000001, 4) for kind in (1, 2, 3) for region in range(4)]
    clear = edit(4, 2, 64).integer(64, 1)
    raw = edit(5, 0, 0) + Seed(rest=b"ISHM\x02\x01\x02\x00" + bytes(56))
    return [Seed(), *flips, *words, clear, raw]


def quant_seeds() -> Iterator[Seed]:
    damage = itertools.cycle(edits())
    for i, number in enumerate((*FEW, 512, 1024, 1025, *MANY, 8191, 8200)):
        steering = Seed().one_of(i, 5).one_of(i, 2)
        yield steering.size(number, 9000).integer(i, 2).context() + next(damage)


def tagc_seeds() -> Iterator[Seed]:
    damage = itertools.cycle(edits())
    for i, number in enumerate((*FEW, *MANY)):
        steering = Seed().one_of(i, 5).one_of((3, 9, 63)[i % 3], 64).one_of(i, 4).one_of((63, 0, 7)[i % 3], 64)
        seed = steering.size(number, 9000).integer(i, 2).context().one_of(i, 4)
        forged = i % 4 == 1
        yield (seed.integer(number // 2, 4).integer(1, 4) if forged else seed) + next(damage)


def tagc_flat_seeds() -> Iterator[Seed]:
    damage = itertools.cycle(edits())
    for i, number in enumerate((*FEW, *MANY)):
        steering = Seed().one_of(i, 2).one_of(i, 5).one_of((3, 9, 63)[i % 3], 64).one_of((63, 0, 7)[i % 3], 64)
        yield steering.size(number, 9000).integer(i, 2).context() + next(damage)


def options_seeds() -> Iterator[Seed]:
    """Values of options and node maps. Which field takes one is the fuzzer's choice: their number grows."""
    texts = (
        *("2x4", "0,1|2,3|4,5|6,7", "0,2,4,6|1,3,5,7", "0|0", "1x", "-1", "", "tagc", "flat", "10.0", "64", "1e308"),
        *("0.9875", "nan", "4", "256", "100", "1024", "*,!*attn*", "backward", "65536", "99999999999999999999", "yes"),
        *("0", "1", "debug"),
    )
    for field, text in enumerate(texts):
        yield Seed(rest=text.encode()).integer(field, 1).one_of(7, 32)


def weights_seeds() -> Iterator[Seed]:
    damage = itertools.cycle(edits())
    for dtype in range(5):
        for number, distance, is_noise in ((1, 1, 0), (17, 2, 0), (300, 3, 1), (20000, 2, 0), (39999, 4, 0)):
            steering = Seed().one_of(dtype, 5).size(number, 40000).integer(dtype + number % 97, 2)
            yield steering.one_of(distance, 6).one_of(is_noise, 2) + Seed().one_of(0, 2) + next(damage)


SEEDS = {
    "options": options_seeds,
    "quant": quant_seeds,
    "tagc": tagc_seeds,
    "tagc_flat": tagc_flat_seeds,
    "weights": weights_seeds,
}


def write(folder: Path, target: str) -> None:
    """Write the seeds of a target into a folder."""
    for number, seed in enumerate(SEEDS[target]()):
        (folder / f"{number:02}").write_bytes(bytes(seed))
