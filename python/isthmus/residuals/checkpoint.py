"""Reads checkpoints of `torch.distributed.checkpoint` without running code in them.

Checkpoints are pickles, and torch's own reader lets a pickle call any function. Here `.metadata` may name only types
that torch writes there, and saved objects are read with `weights_only`.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import ReadItem

_CLASSES: tuple[type, ...] = (
    metadata.Metadata,
    metadata.TensorStorageMetadata,
    metadata.BytesStorageMetadata,
    metadata.ChunkStorageMetadata,
    metadata.TensorProperties,
    metadata._MEM_FORMAT_ENCODING,
    metadata.MetadataIndex,
    metadata.StorageMeta,
    filesystem._StorageInfo,
    torch.Size,
)
_MAKERS: dict[str, Any] = {f"{one.__module__}.{one.__qualname__}": one for one in _CLASSES} | {
    "torch.serialization._get_layout": torch.serialization._get_layout,
    "pathlib.PosixPath": Path,
    "pathlib._local.PosixPath": Path,  # Python 3.13's
}


class _MetadataUnpickler(pickle.Unpickler):
    """Makes only the objects that torch writes into `.metadata`: types of elements, sizes, places in files."""

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


class CheckpointReader(FileSystemReader):
    """Torch's reader of a folder, with a safe reader of `.metadata`."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Raise ValueError, which names the file, if it holds anything but metadata."""
        path = Path(self.path) / ".metadata"
        with path.open("rb") as file:
            try:
                found = _MetadataUnpickler(file).load()
            except Exception as error:  # pickle raises errors of many types
                raise ValueError(f"{path} was not loaded: {error}") from error
        if not isinstance(found, Metadata):
            raise ValueError(f"{path} holds a {type(found).__name__}, not the metadata of a checkpoint")
        return found


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
