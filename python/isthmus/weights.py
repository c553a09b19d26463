"""Weight differences without a process group: from a trainer to whatever holds the weights that it had before.

``update = encode(old, new)`` on one side, ``new = apply(old, update)`` on the other, or ``changes(held, update)``, to
patch the old weights where they are. docs/weight_updates.md has the rest, and the bytes.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from isthmus.base import native as _native

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["apply", "changes", "encode"]

_VERSION = 2
_MAGIC = b"ISHU"
# Magic, version, CRC-32 and bytes of the table, which is JSON: [name, dtype, shape, bytes] of each tensor.
_HEAD = struct.Struct("<4sIII")
# Types that torch copies, by their bytes: it does not copy all others (int4, float4_e2m1fn_x2).
_COPIED = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def encode(old: Tensor | Mapping[str, Tensor], new: Tensor | Mapping[str, Tensor]) -> bytes:
    """Return what turns `old` into `new`, bit for bit: a tensor, or tensors by name as in a state dict.

    `old` may have more names than `new`, so that a large model can be encoded a part at a time. Each tensor is asked
    for once, and no other is held meanwhile. Tensors are of any dtype, shape and strides, on the CPU or on a GPU, where
    all runs on the current stream. Raises isthmus.Error, or TypeError for what is no tensor.
    """
    before, now = _by_name(old), _by_name(new)
    if isinstance(old, Tensor) != isinstance(new, Tensor):
        raise TypeError(f"the old weights are {_what(old)}, the new ones {_what(new)}")
    rows, records = [], []
    for name in now:
        if now is new and not isinstance(name, str):
            raise TypeError(f"a name {name!r}: expected str")
        row, record = _encoded(name, before, now)
        rows.append(row)
        records.append(record)
    table = json.dumps(rows).encode()
    return b"".join([_HEAD.pack(_MAGIC, _VERSION, zlib.crc32(table), len(table)), table, *records])


@overload
def apply(old: Tensor, update: ReadableBuffer) -> Tensor: ...
@overload
def apply(old: Mapping[str, Tensor], update: ReadableBuffer) -> dict[str, Tensor]: ...
def apply(old: Tensor | Mapping[str, Tensor], update: ReadableBuffer) -> Tensor | dict[str, Tensor]:
    """Return what `encode` was given as `new`: the names of the update, of those that `old` has.

    `old` stays as it is, so that nothing is half applied, whatever the bytes are. Changed tensors are new and
    contiguous, on their old tensor's device; others are the old ones themselves. Raises isthmus.PacketError if the
    bytes are damaged, cut off, of another version or made up, and isthmus.Error if they are for other weights: names,
    dtypes, shapes, bits.
    """
    before, parts = _by_name(old), _parts_for(old, update)
    result: dict[str | None, Tensor] = {}
    for part in parts:
        given = _fitting(before, part)
        words = _decoded(_words(given), given, part)
        result[part.name] = given if words is None else words[: given.nbytes].view(given.dtype).view(given.shape)
    return result[None] if isinstance(old, Tensor) else result  # type: ignore[return-value]


def changes(held: Tensor | Mapping[str, Tensor], update: ReadableBuffer) -> Iterator[tuple[str | None, Tensor, Tensor]]:
    """Yield (name, flat indices, new values) of each tensor that changed, for those who patch weights where they are.

    Indices count elements as `reshape(-1)` does, ascending, int64; values have the tensor's dtype; both are of one
    dimension, on its device. The name is None where `held` is a tensor. The call itself checks everything, and raises
    the errors of `apply`: what it returns yields only what fits. It decodes each tensor twice, and holds one beside
    `held` at a time: `held[name].view(-1)[indices] = values` may follow at once. Of tensors that share memory, such as
    tied weights, it holds all changes from the beginning. `update` is borrowed until the last is yielded, and nobody
    else may change `held` until then.
    """
    before, parts = _by_name(held), _parts_for(held, update)
    spans = []
    for part in parts:
        given = _fitting(before, part)
        _decoded(_words(given), given, part)
        storage = StorageWeakRef(given.untyped_storage())  # type: ignore[no-untyped-call]
        spans.append((*_span(given), storage, part.name))
        del given
    sharing = _sharing_memory(spans)
    kept = {part.name: _changed(before, part) for part in parts if part.name in sharing}
    found = ((part.name, kept.pop(part.name) if part.name in kept else _changed(before, part)) for part in parts)
    return ((name, indices, values) for name, (indices, values) in found if len(indices))


@dataclass(frozen=True)
class _Part:
    """One tensor of an update."""

    name: str | None  # None: the update is of a tensor alone
    dtype: str
    shape: list[int]
    record: memoryview


def _encoded(name: Any, before: Mapping[Any, Tensor], now: Mapping[Any, Tensor]) -> tuple[list[Any], bytes]:
    """Return a tensor's row in the table, and its record."""
    old, new = _given(name, before, "the new weights"), _given(name, now, "")
    for what, of_old, of_new in (
        ("dtype", old.dtype, new.dtype),
        ("shape", list(old.shape), list(new.shape)),
        ("device", old.device, new.device),
    ):
        _check(of_old == of_new, f"{_label(name)}: old weights of {what} {of_old}, new ones of {of_new}")
    record = _native.load().encode_weights(_words(old), _words(new), new.nbytes, new.dtype).numpy().tobytes()
    return [name, _text(new.dtype), list(new.shape), len(record)], record


def _parts_for(old: Tensor | Mapping[str, Tensor], update: ReadableBuffer) -> list[_Part]:
    parts = _parts(memoryview(update).cast("B"))
    is_of_one = [part.name for part in parts] == [None]
    _check(
        is_of_one == isinstance(old, Tensor),
        f"an update of {'a tensor' if is_of_one else 'tensors by name'} for {_what(old)}",
    )
    return parts


def _fitting(before: Mapping[Any, Tensor], part: _Part) -> Tensor:
    given = _given(part.name, before, "the update")
    for what, has, needed in (("dtype", _text(given.dtype), part.dtype), ("shape", list(given.shape), part.shape)):
        _check(has == needed, f"{_label(part.name)}: old weights of {what} {has}, an update of {needed}")
    return given


def _decoded(words: Tensor, given: Tensor, part: _Part) -> Tensor | None:
    """Return the new bits as the old ones are given, or None if they are the same."""
    native = _native.load()
    try:
        new: Tensor | None = native.decode_weights(words, given.nbytes, given.dtype, part.record)
    except native.Error as error:
        text = str(error).replace(" from node 0", "")  # there are no nodes
        raise type(error)(f"{_label(part.name)}: {text}") from None
    return new


def _changed(before: Mapping[Any, Tensor], part: _Part) -> tuple[Tensor, Tensor]:
    """Return flat indices and new values of what changes in a tensor."""
    given = _fitting(before, part)
    old = _words(given)
    new = _decoded(old, given, part)
    if new is None or not given.numel():
        return torch.empty(0, dtype=torch.int64, device=given.device), given.new_empty(0)
    whole = _COPIED.get(given.itemsize, torch.int64)  # complex128: two
    old, new = (words[: given.nbytes].view(whole).view(given.numel(), -1) for words in (old, new))
    indices = (old != new).any(1).nonzero().view(-1)
    return indices, new[indices].view(-1).view(given.dtype)


def _span(tensor: Tensor) -> tuple[int, int]:
    """Return where a tensor's memory begins and ends."""
    begin = tensor.data_ptr()
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return begin, begin + (last + 1) * tensor.itemsize if tensor.numel() else begin


def _sharing_memory(spans: list[tuple[int, int, StorageWeakRef, str | None]]) -> set[str | None]:
    """Return the names of tensors that begin where another one has not ended. Memory that is gone is nobody's."""
    names: set[str | None] = set()
    furthest, holder = 0, None
    for begin, end, storage, name in sorted(spans, key=lambda span: span[:2]):
        if begin == end or storage.expired():  # type: ignore[no-untyped-call]
            continue
        if begin < furthest:
            names |= {holder, name}
        if end > furthest:
            furthest, holder = end, name
    return names


def _parts(update: memoryview) -> list[_Part]:
    """Return the tensors of an update. Raises PacketError if it is not one, from beginning to end."""
    refused = _native.load().PacketError
    if len(update) < _HEAD.size:
        raise refused(f"an update of {len(update)} bytes, where the first {_HEAD.size} say what it is")
    magic, version, checksum, size = _HEAD.unpack_from(update)
    if magic != _MAGIC:
        raise refused(f"these bytes begin with {magic!r}, and updates of weights with {_MAGIC!r}")
    if version != _VERSION:
        raise refused(f"an update of version {version}, where {_VERSION} is known: both sides need the same isthmus")
    table = update[_HEAD.size : _HEAD.size + size]
    if len(table) < size:
        raise refused(f"an update that ends after {len(update)} bytes, in its table of {size}")
    if zlib.crc32(table) != checksum:
        raise refused(f"a corrupt table: its bytes have the CRC-32 {zlib.crc32(table)}, and {checksum} is expected")
    try:
        rows = json.loads(bytes(table))
        parts = list(_split(rows, update[_HEAD.size + size :]))
    except (ValueError, TypeError, RecursionError) as error:
        raise refused(f"a corrupt table: {error}") from None
    names = [part.name for part in parts]
    if len({*names}) < len(names) or (None in names and len(names) > 1):
        raise refused("a corrupt table: names that occur twice, or are missing")
    return parts


def _split(rows: Any, records: memoryview) -> Iterator[_Part]:
    """Yield the tensors that the rows of a table name. Raises ValueError or TypeError if something does not fit."""
    end = 0
    for name, dtype, shape, size in rows:
        if not isinstance(name, str | None) or size < 0:
            raise ValueError(f"a row with name {name!r} and {size!r} bytes")
        begin, end = end, end + size
        yield _Part(name, dtype, shape, records[begin:end])
    if end != len(records):
        raise ValueError(f"tensors of {end} bytes, where {len(records)} follow the table")


def _words(tensor: Tensor) -> Tensor:
    """Return the bits of a tensor as bytes, in whole words of 8 at a multiple of 16."""
    bits = tensor.detach().resolve_conj().resolve_neg()
    whole = bits.view(_COPIED.get(bits.itemsize, bits.dtype)).contiguous()
    flat = whole.as_strided((whole.numel(),), (1,)).view(torch.uint8)  # a view of one element may keep another stride
    missing = -flat.numel() % 8
    return torch.nn.functional.pad(flat, (0, missing)) if missing or flat.data_ptr() % 16 else flat


def _by_name(weights: Tensor | Mapping[str, Tensor]) -> Mapping[Any, Tensor]:
    if not isinstance(weights, Tensor | Mapping):
        raise TypeError(f"weights: expected a tensor, or a mapping from names to tensors, not {_what(weights)}")
    return {None: weights} if isinstance(weights, Tensor) else weights


def _given(name: Any, weights: Mapping[Any, Tensor], where: str) -> Tensor:
    """Return the tensor of a name that `where` has. Raises Error if there is none, or it has no bits of its own."""
    try:
        tensor = weights[name]
    except KeyError:
        raise _native.load().Error(f"{_label(name)} is in {where}, and not in the old weights") from None
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{_label(name)}: expected a tensor, not {_what(tensor)}")
    is_made_of_others = tensor.is_quantized or hasattr(tensor, "__tensor_flatten__")
    _check(
        tensor.layout is torch.strided and tensor.device.type in ("cpu", "cuda") and not is_made_of_others,
        f"{_label(name)}: {type(tensor).__name__} of layout {tensor.layout} on device {tensor.device}: expected a "
        "strided tensor on the CPU or a GPU (of a DTensor its to_local(), of a quantised tensor its parts)",
    )
    return tensor


def _check(holds: bool, text: str) -> None:
    if not holds:
        raise _native.load().Error(text)


def _what(weights: object) -> str:
    if isinstance(weights, Tensor | Mapping):
        return "a tensor" if isinstance(weights, Tensor) else "tensors by name"
    return f"a {type(weights).__name__}"


def _label(name: object) -> str:
    return "the tensor" if name is None else repr(name)


def _text(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
