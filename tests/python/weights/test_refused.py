"""isthmus.weights refuses what does not fit, by name, and changes nothing."""

import json
import struct
from collections.abc import Callable
from typing import Any

import pytest
import torch

import isthmus
from isthmus.weights import apply, changes, encode
from support.updates import RECORD_HEAD, parts_of, sealed, update_of

OLD = torch.linspace(-1, 1, 50).bfloat16()
NEW = OLD * 1.01
UPDATE = encode(OLD, NEW)
OLDS = {"a": OLD, "b": torch.arange(3)}
UPDATES = encode(OLDS, {"a": NEW, "b": torch.arange(3) + 1})


def assert_refused(old: Any, update: Any, error: type[Exception], words: str) -> None:
    """By both that take an update; `changes` before it yields anything."""
    before = OLD.clone()
    for take in (apply, changes):
        with pytest.raises(error, match=words) as raised:
            take(old, update)
        assert type(raised.value) is error
    assert torch.equal(OLD.view(torch.int16), before.view(torch.int16))


OTHER_WEIGHTS: list[tuple[Any, Any, str]] = [
    (OLD.float(), UPDATE, "the tensor: old weights of dtype float32, an update of bfloat16"),
    (OLD[:-1], UPDATE, r"the tensor: old weights of shape \[49\], an update of \[50\]"),
    (OLD.view(5, 10), UPDATE, r"the tensor: old weights of shape \[5, 10\], an update of \[50\]"),
    (OLD.to("meta"), UPDATE, "the tensor: Tensor of layout torch.strided on device meta: expected"),
    (NEW, UPDATE, r"the tensor: the old bits have the checksum \d+, but those of the update have \d+: it is for other"),
    (OLDS | {"b": torch.arange(3) + 1}, UPDATES, r"'b': the old bits have the checksum"),
    ({"a": OLD}, UPDATES, "'b' is in the update, and not in the old weights"),
    (OLDS | {"a": OLD.half()}, UPDATES, "'a': old weights of dtype float16, an update of bfloat16"),
    (OLD, UPDATES, "an update of tensors by name for a tensor"),
    (OLDS, UPDATE, "an update of a tensor for tensors by name"),
    (OLD, encode({}, {}), "an update of tensors by name for a tensor"),
]


@pytest.mark.parametrize(("old", "update", "words"), OTHER_WEIGHTS)
def test_updates_of_other_weights(old: Any, update: Any, words: str) -> None:
    assert_refused(old, update, isthmus.Error, words)


def test_an_unchanged_tensor_has_a_checksum_too() -> None:
    assert_refused(NEW, encode(OLD, OLD.clone()), isthmus.Error, "the old bits have the checksum")


def test_one_bit_of_the_old_weights() -> None:
    """The last one, which stands in a word that its tensor does not fill."""
    old = OLD.clone()
    old.view(torch.int16)[-1] ^= 1
    assert_refused(old, UPDATE, isthmus.Error, "the old bits have the checksum")


NOT_WEIGHTS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: encode(OLD, NEW.float()), isthmus.Error, "old weights of dtype torch.bfloat16, new ones of torch.float32"),
    (lambda: encode(OLD, NEW[1:]), isthmus.Error, r"old weights of shape \[50\], new ones of \[49\]"),
    (lambda: encode(OLD.to("meta"), NEW), isthmus.Error, "on device meta"),
    (lambda: encode({"a": OLD}, {"b": NEW}), isthmus.Error, "'b' is in the new weights, and not in the old weights"),
    (lambda: encode(OLD, {"a": NEW}), TypeError, "the old weights are a tensor, the new ones tensors by name"),
    (lambda: encode({"a": OLD}, {"a": 3}), TypeError, "'a': expected a tensor, not a int"),
    (lambda: encode({1: OLD}, {1: NEW}), TypeError, "a name 1: expected str"),
    (lambda: encode({None: OLD}, {None: NEW}), TypeError, "a name None: expected str"),
    (lambda: encode(3, 4), TypeError, "expected a tensor, or a mapping from names to tensors, not a int"),
    (lambda: encode(OLD.to_sparse(), NEW), isthmus.Error, "of layout torch.sparse_coo"),
    (lambda: apply(OLD, "text"), TypeError, "bytes-like"),
    (lambda: apply([OLD], UPDATE), TypeError, "not a list"),
]


@pytest.mark.parametrize(("call", "error", "words"), NOT_WEIGHTS)
def test_what_is_no_weights(call: Callable[[], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


def test_a_tensor_that_is_made_of_others() -> None:
    class Wrapped(torch.Tensor):
        def __tensor_flatten__(self) -> None: ...

    with pytest.raises(isthmus.Error, match=r"the tensor: Wrapped of layout .* to_local"):
        encode(OLD, NEW.as_subclass(Wrapped))


def test_bytes_that_end_early_or_late() -> None:
    for length in range(len(UPDATE)):
        words = "update of|ends after|a corrupt table: tensors of"  # in the head, in the table, in the record
        assert_refused(OLD, UPDATE[:length], isthmus.PacketError, words)
    assert_refused(OLD, UPDATE + b"\0", isthmus.PacketError, r"a corrupt table: tensors of \d+ bytes, where \d+ follow")
    assert_refused(OLDS, UPDATES[:-8], isthmus.PacketError, "a corrupt table: tensors of")


def test_each_bit() -> None:
    for bit in range(8 * len(UPDATE)):
        damaged = bytearray(UPDATE)
        damaged[bit // 8] ^= 1 << bit % 8
        assert_refused(OLD, damaged, isthmus.PacketError, "update|corrupt|magic|expected|begin")


@pytest.mark.parametrize("distance", [-1, 1])
def test_other_versions(distance: int) -> None:
    table, records = parts_of(UPDATE)
    words = f"an update of version {2 + distance}, where 2 is known"
    assert_refused(OLD, update_of(table, records, 2 + distance), isthmus.PacketError, words)
    other = bytearray(records)
    other[4] += distance
    words = f"the tensor: version of packets of weights {3 + distance}, where 3 is expected"
    assert_refused(OLD, update_of(table, sealed(other)), isthmus.PacketError, words)


def test_other_files() -> None:
    assert_refused(OLD, b"PK\3\4" + UPDATE[4:], isthmus.PacketError, r"these bytes begin with b'PK\\x03\\x04'")


@pytest.mark.parametrize(
    "rows",
    [
        "",
        "null",
        "7",
        "[null]",
        "[7]",
        '["abcd"]',
        "[[]]",
        "{}x",
        '[[null, "bfloat16", [50]]]',
        '[[null, "bfloat16", [50], "8"]]',
        '[["a", "bfloat16", [50], SIZE], ["b", "int64", [3], 8], ["c", "int64", [3], -8]]',
        '[[null, "bfloat16", [50], true]]',
        '[[null, "bfloat16", [50], 1e9]]',
        f'[[null, "bfloat16", [50], {10**30}]]',
        f'[[null, "bfloat16", [50], {"9" * 5000}]]',
        '[[7, "bfloat16", [50], SIZE]]',
        '[[[], "bfloat16", [50], SIZE]]',
        '[["a", "bfloat16", [50], SIZE], ["a", "bfloat16", [50], 0]]',
        '[["a", "bfloat16", [50], SIZE], [null, "bfloat16", [50], 0]]',
        "[" * 2000,
        "\ud800",
    ],
)
def test_tables_that_nobody_writes(rows: str) -> None:
    records = parts_of(UPDATE)[1]
    table = rows.replace("SIZE", str(len(records))).encode("utf-8", "surrogatepass")
    for old in (OLD, OLDS):
        assert_refused(old, update_of(table, records), isthmus.PacketError, "a corrupt table")


def test_tables_that_name_something_else() -> None:
    records = parts_of(UPDATE)[1]
    for dtype, shape in (("float16", [50]), ("nothing", [50]), (None, [50]), ("bfloat16", "50"), ("bfloat16", [-50])):
        table = json.dumps([[None, dtype, shape, len(records)]]).encode()
        assert_refused(OLD, update_of(table, records), isthmus.Error, "old weights of")


def with_record(record: bytes) -> bytes:
    return update_of(json.dumps([[None, "bfloat16", [50], len(record)]]).encode(), record)


def test_records_that_nobody_writes() -> None:
    """With checksums that fit."""
    record = parts_of(UPDATE)[1]
    head, packet = record[:RECORD_HEAD], record[RECORD_HEAD:]
    for bytes_of_packet in (8, len(packet) - 8, len(packet) + 8):
        forged = (packet + bytes(8))[:bytes_of_packet]
        assert_refused(OLD, with_record(sealed(head + forged)), isthmus.PacketError, "the tensor: corrupt packet")
    assert_refused(OLD, with_record(sealed(head + packet[:-3])), isthmus.PacketError, "odd bytes")
    assert_refused(OLD, with_record(head[:-1]), isthmus.PacketError, "63 bytes, where a header has 64")
    assert_refused(OLD, with_record(b""), isthmus.PacketError, "0 bytes, where a header has 64")
    for offset, form, value, words in (
        (0, "<I", 7, "magic 7"),
        (5, "<B", 3, "data type 3, where 2 is expected"),
        (24, "<Q", 2**63, "number of elements 9223372036854775808, where 50 is expected"),
    ):
        forged_head = bytearray(head)
        struct.pack_into(form, forged_head, offset, value)
        assert_refused(OLD, with_record(sealed(forged_head + packet)), isthmus.PacketError, words)


def test_a_packet_whose_size_is_another_than_the_header_says() -> None:
    record = parts_of(UPDATE)[1]
    assert_refused(OLD, with_record(record + bytes(8)), isthmus.PacketError, "bytes of the packet")
    assert_refused(OLD, with_record(record[:RECORD_HEAD]), isthmus.PacketError, "bytes of the packet")
