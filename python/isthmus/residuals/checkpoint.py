"""Reads checkpoints of `torch.distributed.checkpoint`, whoever made them.

Checkpoints are pickles, and torch's own reader lets a pickle call any function, opens any file that it names, and
allocates what it asks for. The reader of folders makes only objects that torch writes into `.metadata`, opens only
regular files of the folder, and compares each number with the file before it uses it.
"""

from __future__ import annotations

import io
import os
import pickle
import stat
import struct
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch.distributed.checkpoint import metadata
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import ReadItem

from isthmus.torch_private.models import checkpoint_makers

_Place, _Encoding, _get_layout = checkpoint_makers()
_CLASSES: tuple[type, ...] = (
    metadata.Metadata,
    metadata.TensorStorageMetadata,
    metadata.BytesStorageMetadata,
    metadata.ChunkStorageMetadata,
    metadata.TensorProperties,
    _Encoding,
    metadata.MetadataIndex,
    metadata.StorageMeta,
    _Place,
    torch.Size,
)
_MAKERS: dict[str, Any] = {f"{one.__module__}.{one.__qualname__}": one for one in _CLASSES} | {
    "torch.serialization._get_layout": _get_layout,
    "pathlib.PosixPath": Path,
    "pathlib._local.PosixPath": Path,  # Python 3.13's
}
# All that torch's pickles consist of. Others allocate as much as they like, or belong to kinds of objects that are not
# there.
_OPCODES = (
    *(pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MEMOIZE, pickle.BINPUT, pickle.LONG_BINPUT),
    *(pickle.BINGET, pickle.LONG_BINGET, pickle.MARK, pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE),
    *(pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG1, pickle.BINFLOAT),
    *(pickle.SHORT_BINUNICODE, pickle.BINUNICODE, pickle.EMPTY_LIST, pickle.APPEND, pickle.APPENDS),
    *(pickle.EMPTY_DICT, pickle.SETITEM, pickle.SETITEMS, pickle.GLOBAL, pickle.STACK_GLOBAL),
    *(pickle.EMPTY_TUPLE, pickle.NEWOBJ, pickle.REDUCE),
)
_TUPLES = (pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3)
# The most elements of a tuple, such as a size. A tuple of tuples of tuples takes for ever to hash where each has the
# next one twice.
_MOST_IN_TUPLE = 64
#: The most bytes of `.metadata`, and of all descriptions of ranks together: far above those of the largest jobs.
MOST_TEXT_BYTES = 1 << 30
#: The most bytes that torch.save() writes beside a tensor's elements.
_MOST_BESIDE_TENSOR = 1 << 20
_ELEMENT_BYTES = 4  # residuals are float32


def _small(load: Any) -> Any:
    def load_tuple(unpickler: Any) -> None:
        load(unpickler)
        made = unpickler.stack[-1]
        inner = [each for each in made[: _MOST_IN_TUPLE + 1] if isinstance(each, tuple)]
        if len(made) > _MOST_IN_TUPLE or any(isinstance(each, tuple) for one in inner for each in one):
            raise pickle.UnpicklingError("it has a tuple of more elements, or of more tuples, than torch writes there")

    return load_tuple


def _unless_constant(build: Any) -> Any:
    def load_build(unpickler: Any) -> None:
        if isinstance(unpickler.stack[-2], Enum):
            raise pickle.UnpicklingError("it sets attributes of a constant")
        build(unpickler)

    return load_build


class _Unpickler(pickle._Unpickler):
    """Makes only the objects that torch writes into `.metadata`: types of elements, sizes, places in files.

    The unpickler in Python, for that in C allocates as many places for objects as a number in the pickle says.
    """

    dispatch: ClassVar = {
        **{opcode[0]: pickle._Unpickler.dispatch[opcode[0]] for opcode in _OPCODES},
        **{opcode[0]: _small(pickle._Unpickler.dispatch[opcode[0]]) for opcode in _TUPLES},
        pickle.BUILD[0]: _unless_constant(pickle._Unpickler.dispatch[pickle.BUILD[0]]),
    }

    def find_class(self, module: str, name: str) -> Any:
        full_name = f"{module}.{name}"
        if module == "torch" and isinstance(vars(torch).get(name), torch.dtype):
            return vars(torch)[name]
        if full_name not in _MAKERS:
            raise pickle.UnpicklingError(
                f"it names {full_name}, which torch does not write there and which may run any program. If you trust "
                "whoever made it, give load_checkpoint a torch.distributed.checkpoint.FileSystemReader of the folder"
            )
        make = _MAKERS[full_name]

        class StandIn:
            """Makes the object. A pickle could set attributes on the real class or function."""

            def __new__(cls, *arguments: Any) -> Any:
                return make(*arguments) if arguments else make.__new__(make)

        return StandIn


@contextmanager
def _opened(folder: Path, name: Any) -> Iterator[tuple[io.FileIO, int]]:
    """Open a regular file of the folder itself; yield it with its bytes. Raises ValueError for any other name."""
    if not isinstance(name, str) or name in ("", "..") or "\0" in name or Path(name).name != name:
        raise ValueError(f"{name if isinstance(name, str) else type(name)} is not the name of a file in {folder}")
    # Nobody writes into a FIFO, and a link may lead anywhere.
    descriptor = os.open(folder / name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise ValueError(f"{folder / name} is not a regular file")
        yield io.FileIO(descriptor, closefd=False), found.st_size
    finally:
        os.close(descriptor)


def read_metadata(folder: Path) -> Metadata:
    """Read `.metadata`. Raises ValueError, which names the file, if it holds anything but metadata."""
    path = folder / ".metadata"
    try:
        with _opened(folder, path.name) as (file, num_bytes):
            if num_bytes > MOST_TEXT_BYTES:
                raise ValueError(f"it has {num_bytes} bytes: expected at most {MOST_TEXT_BYTES}")
            found = _Unpickler(io.BytesIO(file.read(num_bytes))).load()
    except FileNotFoundError:
        raise
    except Exception as error:  # pickle raises errors of many types
        raise ValueError(f"{path} was not loaded: {_sentence(error)}") from error
    if not isinstance(found, Metadata):
        raise ValueError(f"{path} holds a {type(found).__name__}, not the metadata of a checkpoint")
    if not all(isinstance(getattr(found, name, None), dict) for name in ("state_dict_metadata", "storage_data")):
        raise ValueError(f"{path} holds metadata without entries")
    return found


def _sentence(error: Exception) -> str:
    return f"{error}" if isinstance(error, (ValueError, pickle.UnpicklingError, OSError)) else repr(error)


@dataclass
class FolderReader:
    """Reads texts and residuals from a folder that torch's FileSystemWriter wrote."""

    folder: Path
    metadata: Metadata
    sizes: Mapping[str, int]  # how many elements the tensors have that may be read; other entries are texts

    def __post_init__(self) -> None:
        self._text_bytes_left = MOST_TEXT_BYTES

    def read(self, names: Iterable[str]) -> dict[str, Any]:
        """Read entries. Raises ValueError, which names the entry and its file, if one is not as torch writes it."""
        return {name: self._read(name, self.sizes.get(name)) for name in names}

    def _read(self, name: str, num_elements: int | None) -> Any:
        index = MetadataIndex(name) if num_elements is None else MetadataIndex(name, torch.Size([0]))
        place: Any = self.metadata.storage_data.get(index)
        try:
            if not isinstance(place, _Place):
                raise ValueError("it is in no file as a whole")
            if getattr(place, "transform_descriptors", None):
                raise ValueError("it was written through extensions of torch's writer, which are not read")
            if num_elements is None:
                return _Unpickler(io.BytesIO(self._record(place, "data.pkl", None))).load()
            values = bytearray(self._record(place, "data/0", num_elements * _ELEMENT_BYTES))
            return torch.frombuffer(values, dtype=torch.float32)
        except Exception as error:  # zipfile and pickle raise errors of many types
            file = getattr(place, "relative_path", None)
            where = file if isinstance(file, str) else "the checkpoint"
            raise ValueError(f"{name!r} in {where}: {_sentence(error)}") from error

    def _record(self, place: Any, record: str, num_bytes: int | None) -> memoryview:
        """Return a record of the archive that torch.save() wrote there. num_bytes: what it has; None: a text's."""
        begin, length = (getattr(place, name, None) for name in ("offset", "length"))
        with _opened(self.folder, getattr(place, "relative_path", None)) as (file, file_bytes):
            if not isinstance(begin, int) or not isinstance(length, int):
                raise ValueError("its place in the file is no number")
            if not 0 <= begin <= begin + length <= file_bytes:
                raise ValueError(f"it is to have {length} bytes from {begin} on, in a file of {file_bytes}")
            most = self._text_bytes_left if num_bytes is None else num_bytes + _MOST_BESIDE_TENSOR
            if not (num_bytes or 0) <= length <= most:
                raise ValueError(f"it has {length} bytes: expected {num_bytes or 0} to {most}")
            self._text_bytes_left -= length if num_bytes is None else 0
            file.seek(begin)
            archive = file.read(length)
        records = {info.filename.partition("/")[2]: info for info in zipfile.ZipFile(io.BytesIO(archive)).infolist()}
        info = records[record]
        name_bytes, extra_bytes = struct.unpack_from("<HH", archive, info.header_offset + 26)
        first = info.header_offset + 30 + name_bytes + extra_bytes
        content = memoryview(archive)[first : first + info.file_size]
        if info.compress_type != zipfile.ZIP_STORED or len(content) != info.file_size:
            raise ValueError(f"its record {record} is compressed, or has not the {info.file_size} bytes that it names")
        if num_bytes not in (None, len(content)):
            raise ValueError(f"its record {record} has {len(content)} bytes: expected {num_bytes}")
        return content


class TextAndTensorPlanner(DefaultLoadPlanner):
    """Loads into a flat state, and reads entries other than tensors with `weights_only`."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Raise ValueError, which names the entry and its file, if it is not plain data."""
        try:
            self.state_dict[read_item.dest_index.fqn] = torch.load(value, weights_only=True)
        except pickle.UnpicklingError as error:
            raise ValueError(f"{describe_entries(self.metadata, [read_item])}: {error}") from error


def describe_entries(metadata: Metadata | None, items: Iterable[ReadItem]) -> str:
    """Name entries of a checkpoint, and their files if those are known."""
    storage = (metadata and metadata.storage_data) or {}
    places = {item.storage_index.fqn: storage.get(item.storage_index) for item in items}
    return ", ".join(
        f"{name!r} in {getattr(place, 'relative_path', 'the checkpoint')}" for name, place in places.items()
    )
