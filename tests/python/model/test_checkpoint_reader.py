"""What a checkpoint holds is read; files that are damaged, cut off or of another kind are named."""

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader

from isthmus.model.checkpoint import source_of_checkpoint
from isthmus.model.residuals import _same_group
from isthmus.model.saved_state import SavedGroup, SavedUnit, Source, source_of_state, to_text

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

UNIT = SavedUnit("blocks.0", 6, "float32", "reduce_scatter", 0, 2, 0.5, 3, 0, is_held=False, parameters="")
GROUPS = [SavedGroup((0,), (0,), {"codec": "tagc"}, (UNIT,))]
KEY = "rank0/0/0/residual"
STATE = {"rank0": to_text(GROUPS), KEY: torch.tensor([1.0, 2.0, 4.0])}


def saved(folder: Path, state: dict[str, Any]) -> Path:
    dcp.save({"isthmus": state}, checkpoint_id=folder, no_dist=True)
    return folder


def read(checkpoint: Any) -> Source:
    source = source_of_checkpoint(checkpoint, "isthmus")
    assert source.ranks == {0: GROUPS}
    source.check(0, 0)
    assert source.residuals(0, 0, 0)["residual"].tolist() == [1, 2, 4]
    return source


def test_a_unit_comes_back_as_it_was() -> None:
    unit = replace(UNIT, layout=7, is_held=True, parameters="[1, 0, []]")
    state = {"rank0": to_text([SavedGroup((0,), (0,), {}, (unit,))])}
    assert source_of_state(state).ranks[0][0].units == (unit,)


def test_each_rank_finds_a_group_among_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    low, high = SavedGroup((0, 1), (0, 1), {}, ()), SavedGroup((1, 2), (0, 1), {}, ())
    source = source_of_state({"rank0": to_text([low]), "rank1": to_text([high, low])})
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    assert [_same_group(source, ranks, [[0], [1]], 0) for ranks in ((0, 1), (1, 2))] == [1, 0]
    assert _same_group(source, (0, 1), [[0, 1]], 0) is None  # on other nodes


@pytest.mark.parametrize("reader", [str, Path, FileSystemReader])
def test_ours_are_read_beside_all_kinds_of_tensors_and_objects(tmp_path: Path, reader: Callable[[Path], Any]) -> None:
    types = (torch.bfloat16, torch.int64, torch.float8_e4m3fn, torch.complex64, torch.bool)
    others = {str(dtype): torch.zeros(2, 3, dtype=dtype) for dtype in types}
    state = {"isthmus": STATE, "model": {**others, "steps": [3, {"lr": 0.1, "done": None}], "empty": torch.empty(0)}}
    dcp.save(state, checkpoint_id=tmp_path, no_dist=True)
    read(reader(tmp_path))


METADATA, DATA = ".metadata", "__0_0.distcp"


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


@pytest.mark.parametrize(
    ("file", "change", "error"),
    [
        (METADATA, lambda _: b"", r"torch cannot read its \.metadata: EOFError"),
        (METADATA, cut, r"torch cannot read its \.metadata"),
        (METADATA, lambda _: b"step: 7\n", r"torch cannot read its \.metadata"),
        (METADATA, lambda _: pickle.dumps({"state_dict_metadata": {}}), r"torch cannot read its \.metadata"),
        (DATA, lambda _: b"", rf"'isthmus\.rank0' in {DATA}: torch cannot read it"),
        (DATA, cut, rf"'isthmus\.rank0[^']*' in {DATA}: torch cannot read it"),
        (DATA, lambda content: bytes(len(content)), rf"'isthmus\.rank0' in {DATA}: torch cannot read it"),
    ],
)
@pytest.mark.parametrize("reader", [Path, FileSystemReader])
def test_damaged_files_are_named(
    tmp_path: Path, reader: Callable[[Path], Any], file: str, change: Callable[[bytes], bytes], error: str
) -> None:
    path = saved(tmp_path, STATE) / file
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ValueError, match=error) as raised:
        read(reader(tmp_path))
    assert file == DATA or str(tmp_path) in str(raised.value)


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nothing"):
        read(tmp_path / "nothing")
    (saved(tmp_path, STATE) / DATA).unlink()
    with pytest.raises(ValueError, match=rf"'isthmus\.rank0' in {DATA}: torch cannot read it: FileNotFoundError"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"rank0": 7}, "'rank0' is a int, not the description of a rank"),
        ({"rank0": UNIT}, r"'isthmus\.rank0' in __0_0\.distcp: torch cannot read it: .*Weights only load failed"),
        ({"rank0": torch.ones(3)}, "the checkpoint has no 'isthmus' with residuals"),
        ({KEY: torch.ones(3, 1)}, f"'isthmus.{KEY}' is not a tensor of one dimension"),
        ({KEY: torch.ones(4)}, "the residual of unit 'blocks.0' of rank 0 has 4 elements where 3 were saved"),
        ({KEY: torch.ones(0)}, "the residual of unit 'blocks.0' of rank 0 is missing"),
    ],
)
def test_entries_of_another_kind_are_named(tmp_path: Path, change: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        read(saved(tmp_path, STATE | change))


@pytest.mark.parametrize(
    ("name", "value"),
    [("num_elements", "6"), ("scale", None), ("is_held", 7), ("parameters", None), ("name", [])],
)
def test_descriptions_of_units_have_values_of_their_types(name: str, value: Any) -> None:
    text = to_text([SavedGroup((0,), (0,), {}, (replace(UNIT, **{name: value}),))])
    with pytest.raises(ValueError, match="'rank0' is damaged"):
        _ = source_of_state({"rank0": text}).ranks
