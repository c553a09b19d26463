"""Updates of weights, made up: with checksums that fit, as somebody who makes bytes up would give them."""

import struct
import zlib

HEAD = struct.Struct("<4sIII")
RECORD_HEAD = 64
_WORD = 1 << 64


def checksum(data: bytes) -> int:
    """The checksum that docs/packet_format.md defines, of whole words; never 0."""
    total = 0
    for place, (word,) in enumerate(struct.iter_unpack("<Q", data)):
        number = (place + 1) * 0x9E3779B97F4A7C15 % _WORD
        key = number ^ (number & 0xFFFFFFFF) * (number >> 32)
        low = (word + key) & 0xFFFFFFFF
        high = ((word >> 32) + (key >> 32)) & 0xFFFFFFFF
        total += low * high + (low << 32 | high)
    return max(total % _WORD, 1)


def mix(x: int) -> int:
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % _WORD
    x = (x ^ x >> 27) * 0x94D049BB133111EB % _WORD
    return x ^ x >> 31


def sealed(record: bytes) -> bytes:
    """Return a record whose packet's size and both checksums are right."""
    packet = record[RECORD_HEAD:]
    head = bytearray(record[:RECORD_HEAD])
    struct.pack_into("<QQ", head, 32, len(packet), checksum(packet[: len(packet) // 8 * 8]))
    struct.pack_into("<I", head, 20, 0)
    struct.pack_into("<I", head, 20, mix(checksum(bytes(head))) & 0xFFFFFFFF)
    return bytes(head) + packet


def update_of(table: bytes, records: bytes, version: int = 2) -> bytes:
    return HEAD.pack(b"ISHU", version, zlib.crc32(table), len(table)) + table + records


def parts_of(update: bytes) -> tuple[bytes, bytes]:
    size = HEAD.unpack_from(update)[3]
    return update[HEAD.size : HEAD.size + size], update[HEAD.size + size :]
