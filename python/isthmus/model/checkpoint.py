"""Reads residuals from checkpoints of `torch.distributed.checkpoint`, with torch's own readers."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.storage import StorageReader

from isthmus.model.saved_state import Source


def source_of_checkpoint(checkpoint: Any, key: str) -> Source:
    """Return a source that reads what torch.distributed.checkpoint saved under `key`.

    checkpoint: a folder, or a `StorageReader`. Raises ValueError, which names the entry or file, if torch cannot read
    it or it holds something else; FileNotFoundError if there is no checkpoint.
    """
    reader = checkpoint if isinstance(checkpoint, StorageReader) else FileSystemReader(Path(checkpoint))
    metadata = _metadata_of(reader)
    prefix = f"{key}."
    entries = {name: entry for name, entry in metadata.state_dict_metadata.items() if name.startswith(f"{prefix}rank")}
    sizes = {name: _num_elements(name, entry) for name, entry in entries.items() if hasattr(entry, "size")}
    texts = [name for name in entries if name not in sizes]
    if not texts:
        raise ValueError(
            f"the checkpoint has no {key!r} with residuals of isthmus: keys of it begin with another name?"
        )
    read = partial(_read, reader, metadata, sizes)
    described = {int(name.removeprefix(f"{prefix}rank")): text for name, text in read(texts).items()}
    return Source(described, sizes, read, prefix)


def _metadata_of(reader: StorageReader) -> Metadata:
    where = f"the checkpoint {getattr(reader, 'checkpoint_id', '')}".rstrip()
    try:
        found: Any = reader.read_metadata()
    except FileNotFoundError:
        raise
    except Exception as error:  # pickle raises errors of many types
        raise ValueError(f"{where}: torch cannot read its .metadata: {error!r}") from error
    if not isinstance(found, Metadata):
        raise ValueError(f"{where}: its .metadata holds a {type(found).__name__}, not what torch writes there")
    return found


def _num_elements(name: str, entry: Any) -> int:
    if len(entry.size) != 1:
        raise ValueError(f"{name!r} is not a tensor of one dimension, as residuals are")
    return int(entry.size[0])


def _read(reader: StorageReader, metadata: Metadata, sizes: Mapping[str, int], names: Sequence[str]) -> dict[str, Any]:
    """Read entries; names without a size are texts."""
    wanted: dict[str, Any] = {name: torch.empty(sizes[name]) if name in sizes else "" for name in names}
    if not wanted:
        return {}
    planner = _TextAndTensorPlanner()
    planner.set_up_planner(wanted, metadata, is_coordinator=True)
    reader.set_up_storage_reader(metadata, True)
    plan = reader.prepare_local_plan(planner.create_local_plan())
    plan = reader.prepare_global_plan(planner.create_global_plan([plan]))[0]
    try:
        reader.read_data(planner.finish_plan(plan), planner).wait()
    except Exception as error:  # zipfile and pickle raise errors of many types
        storage = metadata.storage_data or {}
        places = {item.storage_index.fqn: storage.get(item.storage_index) for item in plan.items}
        entries = [f"{name!r} in {getattr(at, 'relative_path', 'the checkpoint')}" for name, at in places.items()]
        raise ValueError(f"{', '.join(entries)}: torch cannot read it: {error!r}") from error
    return wanted


class _TextAndTensorPlanner(DefaultLoadPlanner):
    """Loads into a flat state, and reads entries other than tensors with `weights_only`."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        self.state_dict[read_item.dest_index.fqn] = torch.load(value, weights_only=True)
