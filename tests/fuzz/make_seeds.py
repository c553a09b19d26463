"""Writes the seeds that the fuzzers start from: one for each combination of what steers a target.

The bytes are decisions in the order in which the targets take them; see decisions.h. Usage: make_seeds.py [DIRECTORY]
"""

from __future__ import annotations

import itertools
import struct
import sys
from pathlib import Path

# Sizes: none, one, the edges of words, blocks and tiles; then sizes that the high bits of `choose_size` let through.
FEW = (0, 1, 7, 63, 64, 65, 128, 129, 300)
MANY = (513, 2048, 2049, 4097, 4999)
CONTEXT = struct.pack("<QH", 0x1122334455667788, 9)


def size(num_elements: int) -> bytes:
    """`Decisions::choose_size`."""
    return struct.pack("<HH", 7 if num_elements > FEW[-1] else 0, num_elements)


def edit(kind: int, region: int, place: int, *values: int) -> bytes:
    """One edit of `damage`, with a 32-bit value or none."""
    return struct.pack("<BI", region << 4 | kind, place) + b"".join(struct.pack("<I", value) for value in values)


def edits() -> list[bytes]:
    """Damage of every kind in every region, and none at all."""
    flips = [
        struct.pack("<BIB", region << 4, place, bit) for region, place, bit in ((0, 77, 3), (1, 42, 0), (2, 130, 7))
    ]
    words = [edit(kind, region, 9 * kind + region, 0x80000001) for kind in (1, 2, 3) for region in range(4)]
    clear = [struct.pack("<BIB", 0x20 | 4, 64, 64)]
    raw = [edit(5, 0, 0) + b"ISHM\x02\x01\x02\x00" + bytes(56)]
    return [b"", *flips, *words, *clear, *raw]


def none_seeds() -> list[bytes]:
    cases = [
        (dtype, ranks, number, packets)
        for dtype in range(4)
        for ranks, number, packets in ((0, 0, 0), (2, 65, 1), (8, 300, 2), (3, 2049, 0))
    ]
    damage = itertools.cycle(edits())
    return [
        struct.pack("<HH", dtype, ranks)
        + size(number)
        + struct.pack("<HHH", packets, packets, number)
        + CONTEXT
        + next(damage)
        for dtype, ranks, number, packets in cases
    ]


def tagc_seeds(flat: bool) -> list[bytes]:
    damage = itertools.cycle(edits())
    seeds = []
    for i, number in enumerate((*FEW, *MANY)):
        block, ratio, sparsity, rounds = i % 5, (3, 9, 63)[i % 3], i % 4, (63, 0, 7)[i % 3]
        steering = (i % 2, block, ratio, rounds) if flat else (block, ratio, sparsity, rounds)
        seed = struct.pack("<HHHH", *steering) + size(number) + struct.pack("<H", i) + CONTEXT
        if not flat:
            forged = i % 4 == 1
            seed += struct.pack("<H", forged) + (struct.pack("<II", number // 2, 1) if forged else b"")
        seeds.append(seed + next(damage))
    return seeds


def quant_seeds() -> list[bytes]:
    damage = itertools.cycle(edits())
    return [
        struct.pack("<HHHH", i % 5, i % 4, i % 3, 7 * i % 16)
        + size(number)
        + struct.pack("<H", i)
        + CONTEXT
        + next(damage)
        for i, number in enumerate((*FEW, 512, 1024, 1025, *MANY, 8191, 8200))
    ]


def sparse_seeds() -> list[bytes]:
    damage = itertools.cycle(edits())
    return [
        struct.pack("<HHH", i % 3, i % 4, i % 5) + size(number) + struct.pack("<H", i) + CONTEXT + next(damage)
        for i, number in enumerate((*FEW, 1023, 1024, 1025, *MANY))
    ]


def header_seeds() -> list[bytes]:
    fields = struct.pack("<QHIIQ", 0x1122334455667788, 9, 130, 0x4006, 0x99FD5E2C)
    return [struct.pack("<HH", i % 2, i % 4) + fields + damage for i, damage in enumerate(edits())]


def options_seeds() -> list[bytes]:
    texts_by_field = (
        ("2x4", "0,1|2,3|4,5|6,7", "0,2,4,6|1,3,5,7", "0|0", "1x", "-1", ""),
        ("tagc",),
        ("flat",),
        ("10.0", "64", "1e308"),
        ("0.9875", "nan"),
        ("4",),
        ("256", "100"),
        ("1024",),
        ("*,!*attn*",),
        ("backward",),
        ("65536", "99999999999999999999"),
        ("yes", "0"),
        ("1",),
        ("debug",),
    )
    return [
        struct.pack("<HH", field, 7) + text.encode() for field, texts in enumerate(texts_by_field) for text in texts
    ]


def main() -> None:
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "seeds"
    targets = {
        "header": header_seeds(),
        "none": none_seeds(),
        "quant": quant_seeds(),
        "sparse": sparse_seeds(),
        "tagc": tagc_seeds(flat=False),
        "tagc_flat": tagc_seeds(flat=True),
        "options": options_seeds(),
    }
    for target, seeds in targets.items():
        (directory / target).mkdir(parents=True, exist_ok=True)
        for number, seed in enumerate(seeds):
            (directory / target / f"{number:02}").write_bytes(seed)


if __name__ == "__main__":
    main()
