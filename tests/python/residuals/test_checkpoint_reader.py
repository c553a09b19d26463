"""A checkpoint is data: whatever it holds, loading it calls no function of its choice."""

from __future__ import annotations

import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader, metadata

from isthmus.residuals.checkpoint import CheckpointReader
from isthmus.residuals.saved import SavedGroup, SavedUnit, Source, source_of_checkpoint, source_of_state, to_text

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled", "ignore:Detected pickle protocol")

UNIT = SavedUnit("blocks.0", 6, "float32", "reduce_scatter", 0, 2, 0.5, [], [], 3, 0, 0, is_owned=False)
GROUPS = [SavedGroup((0,), (0,), {"codec": "tagc"}, (UNIT,))]
STATE = {"rank0": to_text(GROUPS), "rank0/0/0/residual": torch.tensor([1.0, 2.0, 4.0])}


class MakesFolder:
    """What it is pickled as makes a folder when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def saved(folder: Path, state: dict[str, Any]) -> Path:
    dcp.save({"isthmus": state}, checkpoint_id=folder, no_dist=True)
    return folder


def read(checkpoint: Any) -> Source:
    """Read all that there is."""
    source = source_of_checkpoint(checkpoint, "isthmus")
    assert source.ranks == {0: GROUPS}
    assert source.residuals(0, 0, 0)["residual"].tolist() == [1, 2, 4]
    return source


def test_a_unit_comes_back_as_it_was() -> None:
    unit = replace(UNIT, sections=[[0, 3]], parked=[[False, 0, 1, 2, 4]], parked_values_elements=4)
    state = {"rank0": to_text([SavedGroup((0,), (0,), {}, (unit,))])}
    assert source_of_state(state).ranks[0][0].units == (unit,)


def test_all_kinds_of_tensors_and_objects_are_read_beside_ours(tmp_path: Path) -> None:
    types = (torch.bfloat16, torch.int64, torch.float8_e4m3fn, torch.complex64, torch.bool)
    others = {str(dtype): torch.zeros(2, 3, dtype=dtype) for dtype in types}
    state = {"isthmus": STATE, "model": {**others, "steps": [3, {"lr": 0.1, "done": None}], "empty": torch.empty(0)}}
    dcp.save(state, checkpoint_id=tmp_path, no_dist=True)
    read(tmp_path)
    ours, torchs = CheckpointReader(tmp_path).read_metadata(), FileSystemReader(tmp_path).read_metadata()
    ours.storage_meta = torchs.storage_meta  # torch numbers each loading
    assert ours == torchs
    assert {type(index) for index in ours.storage_data} == {metadata.MetadataIndex}


def test_metadata_calls_nothing(tmp_path: Path) -> None:
    folder, made = saved(tmp_path / "checkpoint", STATE), tmp_path / "made"
    (folder / ".metadata").write_bytes(pickle.dumps(MakesFolder(made)))
    with pytest.raises(ValueError, match=r"checkpoint/\.metadata was not loaded: it names posix\.mkdir"):
        read(folder)
    assert not made.exists()
    with pytest.raises(AttributeError):
        read(FileSystemReader(folder))  # a reader of the caller's own
    assert made.exists()


# A pickle that sets an attribute of a class.
EVIL = b"\x80\x02ctorch.distributed.checkpoint.metadata\nMetadataIndex\nN}X\x04\x00\x00\x00evilK\x01s\x86b."


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"cbuiltins\neval\n.", r"it names builtins\.eval, which torch does not write there"),
        (b"ctorch\nload\n.", r"it names torch\.load, which"),
        (b"ctorch.serialization\nload\n.", r"it names torch\.serialization\.load, which"),
        (b"cpathlib\nPath.unlink\n.", r"it names pathlib\.Path\.unlink, which"),
        (EVIL, r"\.metadata holds a type, not the metadata of a checkpoint"),
        (b"", r"\.metadata was not loaded"),
        (b"\x80\x04", r"\.metadata was not loaded"),
        (b"no pickle", r"\.metadata was not loaded"),
        (pickle.dumps({"state_dict_metadata": {}}), r"\.metadata holds a dict"),
    ],
)
def test_metadata_that_torch_did_not_write_is_named(tmp_path: Path, content: bytes, error: str) -> None:
    folder = saved(tmp_path, STATE)
    (folder / ".metadata").write_bytes(content)
    with pytest.raises(ValueError, match=error):
        read(folder)
    assert not hasattr(metadata.MetadataIndex, "evil")


@pytest.mark.parametrize("reader", [CheckpointReader, FileSystemReader])
def test_saved_objects_call_nothing(tmp_path: Path, reader: type[FileSystemReader]) -> None:
    made = tmp_path / "made"
    folder = saved(tmp_path / "checkpoint", {**STATE, "rank0": MakesFolder(made)})
    with pytest.raises(ValueError, match=r"'isthmus\.rank0' in __0_0\.distcp: Weights only load failed"):
        read(reader(folder))
    assert not made.exists()


def test_stand_ins_for_tensors_call_nothing(tmp_path: Path) -> None:
    made, key = tmp_path / "made", "isthmus.rank0/0/0/residual"
    folder = saved(tmp_path / "checkpoint", STATE)
    reader = FileSystemReader(folder)
    (place,) = (place for index, place in reader.read_metadata().storage_data.items() if index.fqn == key)
    file = folder / place.relative_path
    evil = pickle.dumps(MakesFolder(made))
    content = file.read_bytes()
    file.write_bytes(content[: place.offset] + evil.ljust(place.length, b"\0") + content[place.offset + place.length :])
    with pytest.raises(ValueError, match=rf"'{key}' in __0_0\.distcp: Weights only load failed"):
        read(folder)
    assert not made.exists()
