"""Sizes of packets, and of the indexes and sketches of the single tier, from docs/packet_format.md and docs/tagc.md.

They are written independently of the library, since a check of the library against itself would always pass.
"""

import math
from typing import NamedTuple

from isthmus.plan.packets import WireOptions

_HEADER_BYTES = 48
_PLAIN_ALIGNMENT = 8
_SECTION_BYTES = 64
_LONGEST_BLOCK = 1024
_SHORTEST_BLOCK = 64
_WANTED_ROWS = 96
_FEWEST_ROWS = 3

_QUANT_GROUP = 128
_QUANT_BLOCK = 512

# How a piece is cut: docs/algorithms.md.
_SEGMENT_ALIGNMENT = 4096
_MOST_CHOSEN_SEGMENTS = 8
_LEAST_CHOSEN_ELEMENTS = 262_144


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
        return self.num_rows * self.block_elements * 4


def segments_of(num_elements: int, options: WireOptions) -> list[int]:
    """The elements of each part of a piece that has a packet of its own."""
    chosen = max(1, min(num_elements // _LEAST_CHOSEN_ELEMENTS, _MOST_CHOSEN_SEGMENTS))
    share = math.ceil(num_elements / (options.segments or chosen))
    length = max(_round_up(share, _SEGMENT_ALIGNMENT), _SEGMENT_ALIGNMENT)
    whole, rest = divmod(num_elements, length)
    return [length] * whole + ([rest] if rest or not whole else [])


def piece_bytes(num_elements: int, element_bytes: int, codec: str, options: WireOptions) -> int:
    """All packets of a piece. element_bytes: of the tensor that is reduced."""
    return sum(packet_bytes(part, element_bytes, codec, options) for part in segments_of(num_elements, options))


def packet_bytes(num_elements: int, element_bytes: int, codec: str, options: WireOptions) -> int:
    if codec == "none":
        return _HEADER_BYTES + _round_up(num_elements * element_bytes, _PLAIN_ALIGNMENT)
    return {"tagc": _tagc_packet_bytes, "quant": _quant_packet_bytes}[codec](num_elements, options)


def _quant_packet_bytes(num_elements: int, options: WireOptions) -> int:
    """A scale for each whole group, codes in whole blocks, the rest of the piece exactly."""
    num_groups, tail_elements = divmod(num_elements, _QUANT_GROUP)
    scales = num_groups * 2
    codes = math.ceil(num_groups * _QUANT_GROUP / _QUANT_BLOCK) * _QUANT_BLOCK * options.bits // 8
    return sum(_round_up(num_bytes, _SECTION_BYTES) for num_bytes in (_HEADER_BYTES, scales, codes, tail_elements * 4))


def _tagc_packet_bytes(num_elements: int, options: WireOptions) -> int:
    if num_elements == 0:
        return _round_up(_HEADER_BYTES, _SECTION_BYTES)
    shape = sketch_shape(num_elements, options)
    flags = math.ceil(shape.num_blocks / 64) * 8
    sections = (_HEADER_BYTES, flags, shape.index_bytes)
    return sum(_round_up(num_bytes, _SECTION_BYTES) for num_bytes in sections) + shape.sketch_bytes


def sketch_shape(num_elements: int, options: WireOptions) -> SketchShape:
    """The longest block whose sketch has enough rows."""
    block = _LONGEST_BLOCK
    shape = _shape(num_elements, block, options)
    while shape.num_rows < _WANTED_ROWS and block > _SHORTEST_BLOCK:
        block //= 2
        shape = _shape(num_elements, block, options)
    return shape


def _shape(num_elements: int, block_elements: int, options: WireOptions) -> SketchShape:
    num_blocks = math.ceil(num_elements / block_elements)
    return SketchShape(num_blocks, block_elements, max(_FEWEST_ROWS, math.ceil(num_blocks / options.ratio)))


def _round_up(num_bytes: int, multiple: int) -> int:
    return math.ceil(num_bytes / multiple) * multiple
