"""Sizes of what crosses between nodes: packets, and the indexes and sketches of the single tier.

They are written down a second time here, from docs/packet_format.md and docs/tagc.md, not asked of the library: a check
against itself would always pass.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

_HEADER_BYTES = 48
_PLAIN_ALIGNMENT = 8
_SECTION_BYTES = 64
_CELL_BYTES = 4
_LONGEST_BLOCK = 1024
_SHORTEST_BLOCK = 64
_WANTED_ROWS = 96
_FEWEST_ROWS = 3


@dataclass(frozen=True)
class WireOptions:
    """The options of Isthmus that decide how many bytes cross; the rest of them do not matter here.

    Every unit is compressed (`units="*"`), and every reduction is known to be a gradient's.
    """

    codec: str = "tagc"
    tiers: str = "two"
    ratio: float = 10.0
    index_bits: int = 1
    block_elements: int = 0
    min_elements: int = 65536
    two_tier_all_gather: bool = True

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "WireOptions":
        """Those of `isthmus.Options`, given by name."""
        return cls(**{field.name: options[field.name] for field in fields(cls)})


class SketchShape(NamedTuple):
    """Blocks of a piece, elements of each, and rows of the sketch that they share."""

    num_blocks: int
    block_elements: int
    num_rows: int

    @property
    def index_bytes(self) -> int:
        """One bit for each element, those past the end of the piece included."""
        return self.num_blocks * self.block_elements // 8

    @property
    def sketch_bytes(self) -> int:
        """All rows of cells."""
        return self.num_rows * self.block_elements * _CELL_BYTES


def plain_packet_bytes(num_elements: int, element_bytes: int) -> int:
    """A packet of codec `none`."""
    return _HEADER_BYTES + _round_up(num_elements * element_bytes, _PLAIN_ALIGNMENT)


def tagc_packet_bytes(num_elements: int, options: WireOptions) -> int:
    """A packet of codec `tagc`, of at least one element."""
    shape = sketch_shape(num_elements, options)
    flags = math.ceil(shape.num_blocks / 64) * 8
    sections = (_HEADER_BYTES, flags, shape.index_bytes)
    return sum(_round_up(num_bytes, _SECTION_BYTES) for num_bytes in sections) + shape.sketch_bytes


def sketch_shape(num_elements: int, options: WireOptions) -> SketchShape:
    """The longest block, unless the options fix it, whose sketch has enough rows."""
    if options.block_elements:
        return _shape(num_elements, options.block_elements, options.ratio)
    block = _LONGEST_BLOCK
    shape = _shape(num_elements, block, options.ratio)
    while shape.num_rows < _WANTED_ROWS and block > _SHORTEST_BLOCK:
        block //= 2
        shape = _shape(num_elements, block, options.ratio)
    return shape


def _shape(num_elements: int, block_elements: int, ratio: float) -> SketchShape:
    num_blocks = math.ceil(num_elements / block_elements)
    return SketchShape(num_blocks, block_elements, max(_FEWEST_ROWS, math.ceil(num_blocks / ratio)))


def _round_up(num_bytes: int, multiple: int) -> int:
    return math.ceil(num_bytes / multiple) * multiple
