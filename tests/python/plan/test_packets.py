"""Sizes of packets as `isthmus plan` has them from the library, against those of the documents, to the byte."""

from dataclasses import fields

import pytest

import isthmus
from isthmus.base import native as _native
from isthmus.plan import packets
from isthmus.plan.assumptions import codec_speeds
from isthmus.plan.packets import WireOptions
from python.plan import packet_sizes

TWO_SEGMENTS = 2 * 262_144 + 4097
# Elements of a piece: around groups, blocks and their multiples, and none divisible.
PIECES = (1, 127, 128, 129, 511, 512, 513, 1023, 1024, 1025, 4096, 4097, 30_001, TWO_SEGMENTS)
SETTINGS = {
    "none": [{}, {"segments": 3}],
    "quant": [
        *({"bits": bits} for bits in range(1, 9)),
        {"segments": 4, "error_feedback": "on"},
    ],
    "tagc": [
        {},
        {"ratio": 2},
        {"segments": 2},
    ],
}


def test_the_plan_knows_every_codec():
    assert set(SETTINGS) == set(_native.load().codecs())
    for speeds in (codec_speeds("cpu"), codec_speeds("gpu"), codec_speeds("100/150")):
        assert set(speeds.by_codec) == {*SETTINGS, "delta"}


def test_long_pieces_are_cut_into_segments():
    assert len(packet_sizes.segments_of(TWO_SEGMENTS, WireOptions())) == 2


def values_of(options):
    return {name: getattr(options, name) for name, *_ in _native.load().option_fields()}


def test_the_plan_has_the_librarys_defaults():
    defaults = values_of(isthmus.Options())
    assert {field.name for field in fields(WireOptions)} - set(defaults) == {"weight_bits"}  # which is measured
    assert WireOptions.of(defaults) == WireOptions()


@pytest.mark.parametrize("codec", SETTINGS)
def test_packets_are_as_long_as_the_documents_say(codec):
    """Plain ones have the gradient's type. A result is one packet, however long it is."""
    for settings in SETTINGS[codec]:
        wire = WireOptions(codec=codec, **settings)
        for piece in PIECES:
            for element_bytes in (4, 2):
                for size in ("piece_bytes", "packet_bytes"):
                    found, expected = (
                        getattr(each, size)(piece, element_bytes, codec, wire) for each in (packets, packet_sizes)
                    )
                    assert found == expected, (settings, piece, element_bytes, size)


@pytest.mark.parametrize("settings", [{}, {"ratio": 2, "sparsity": 0.9}])
def test_indexes_and_sketches_of_a_single_tier_are_as_long_as_the_document_says(settings):
    wire = WireOptions(codec="tagc", tiers="flat", **settings)
    for piece in PIECES:
        shape = packet_sizes.sketch_shape(piece, wire)
        assert packets.flat_bytes(piece, wire) == (shape.index_bytes, shape.sketch_bytes)


def test_options_that_shape_packets_are_the_plans():
    """What a codec looks at and the plan does not is what the sizes of packets do not follow from."""
    in_time = {"dense_steps", "error_interval"}
    known = {field.name for field in fields(WireOptions)} | in_time
    assert {name for name, *_, users in _native.load().option_fields() if users} <= known
