"""A checkpoint is data: loading it calls no function of its choice, and opens and allocates nothing of its choice."""

import io
import os
import pickle
import resource
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader, metadata

from isthmus.residuals import checkpoint
from isthmus.residuals.checkpoint import read_metadata
from isthmus.residuals.saved_state import SavedGroup, SavedUnit, Source, source_of_checkpoint, source_of_state, to_text
from isthmus.residuals.state import _same_group

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
    source = source_of_checkpoint(checkpoint, "isthmus")
    assert source.ranks == {0: GROUPS}
    assert source.residuals(0, 0, 0)["residual"].tolist() == [1, 2, 4]
    return source


def test_a_unit_comes_back_as_it_was() -> None:
    unit = replace(UNIT, sections=[[0, 3]], parked=[[False, 0, 1, 2, 4]], parked_values_elements=4)
    state = {"rank0": to_text([SavedGroup((0,), (0,), {}, (unit,))])}
    assert source_of_state(state).ranks[0][0].units == (unit,)


def test_each_rank_finds_a_group_among_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    low, high = SavedGroup((0, 1), (0, 1), {}, ()), SavedGroup((1, 2), (0, 1), {}, ())
    source = source_of_state({"rank0": to_text([low]), "rank1": to_text([high, low])})
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    assert [_same_group(source, ranks, [[0], [1]], 0) for ranks in ((0, 1), (1, 2))] == [1, 0]
    assert _same_group(source, (0, 1), [[0, 1]], 0) is None  # on other nodes


def test_all_kinds_of_tensors_and_objects_are_read_beside_ours(tmp_path: Path) -> None:
    types = (torch.bfloat16, torch.int64, torch.float8_e4m3fn, torch.complex64, torch.bool)
    others = {str(dtype): torch.zeros(2, 3, dtype=dtype) for dtype in types}
    state = {"isthmus": STATE, "model": {**others, "steps": [3, {"lr": 0.1, "done": None}], "empty": torch.empty(0)}}
    dcp.save(state, checkpoint_id=tmp_path, no_dist=True)
    read(tmp_path)
    ours, torchs = read_metadata(tmp_path), FileSystemReader(tmp_path).read_metadata()
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


@pytest.mark.parametrize(
    ("reader", "error"),
    [(Path, r"it names posix\.mkdir, which torch does not write"), (FileSystemReader, "Weights only load failed")],
)
def test_saved_objects_call_nothing(tmp_path: Path, reader: Callable[[Path], Any], error: str) -> None:
    made = tmp_path / "made"
    folder = saved(tmp_path / "checkpoint", {**STATE, "rank0": MakesFolder(made)})
    with pytest.raises(ValueError, match=rf"'isthmus\.rank0' in __0_0\.distcp: {error}"):
        read(reader(folder))
    assert not made.exists()


def test_stand_ins_for_tensors_call_nothing(tmp_path: Path) -> None:
    made = tmp_path / "made"
    folder = saved(tmp_path / "checkpoint", STATE)
    place = place_of(read_metadata(folder))
    file = folder / place.relative_path
    evil = pickle.dumps(MakesFolder(made))
    content = file.read_bytes()
    file.write_bytes(content[: place.offset] + evil.ljust(place.length, b"\0") + content[place.offset + place.length :])
    with pytest.raises(ValueError, match=rf"'{KEY}' in __0_0\.distcp: BadZipFile"):
        read(folder)
    assert not made.exists()


# --- What a hostile folder names ---

KEY = "isthmus.rank0/0/0/residual"
HUGE = 1 << 50  # elements or bytes that no machine has


def place_of(found: metadata.Metadata) -> Any:
    (place,) = (place for index, place in found.storage_data.items() if index.fqn == KEY)
    return place


def hostile(folder: Path, change: Callable[[metadata.Metadata], None]) -> Path:
    found = read_metadata(saved(folder, STATE))
    change(found)
    (folder / ".metadata").write_bytes(pickle.dumps(found))
    return folder


def set_place(name: str, value: Any) -> Callable[[metadata.Metadata], None]:
    return lambda found: setattr(place_of(found), name, value)


def set_size(*size: int) -> Callable[[metadata.Metadata], None]:
    return lambda found: setattr(found.state_dict_metadata[KEY], "size", torch.Size(size))


@contextmanager
def little_memory() -> Iterator[None]:
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + (256 << 20), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (set_place("relative_path", "/dev/zero"), "/dev/zero is not the name of a file in"),
        (set_place("relative_path", "../beside"), r"\.\./beside is not the name of a file in"),
        (set_place("relative_path", ".."), r"\.\. is not the name of a file in"),
        (set_place("relative_path", ""), " is not the name of a file in"),
        (set_place("relative_path", 7), "<class 'int'> is not the name of a file in"),
        (set_place("relative_path", "missing"), "No such file"),
        (set_place("relative_path", "folder"), "folder is not a regular file"),
        (set_place("relative_path", "fifo"), "fifo is not a regular file"),
        (set_place("relative_path", "link"), "Too many levels of symbolic links"),
        (set_place("offset", -1), r"it is to have \d+ bytes from -1 on, in a file of \d+"),
        (set_place("offset", HUGE), rf"it is to have \d+ bytes from {HUGE} on, in a file of \d+"),
        (set_place("offset", "0"), "its place in the file is no number"),
        (set_place("length", HUGE), rf"it is to have {HUGE} bytes from \d+ on, in a file of \d+"),
        (set_place("length", -1), r"it is to have -1 bytes from \d+ on, in a file of \d+"),
        (set_place("length", 0), "it has 0 bytes: expected 12 to"),
        (set_place("transform_descriptors", ["stream.zstd"]), "it was written through extensions"),
        (set_size(HUGE), rf"it has \d+ bytes: expected {4 * HUGE} to"),
        (set_size(-3), "its record data/0 has 12 bytes: expected -12"),
        (set_size(4), r"its record data/0 has 12 bytes: expected 16"),
        (set_size(3, HUGE), "is not a tensor of one dimension, as residuals are"),
        (lambda found: found.storage_data.clear(), "it is in no file as a whole"),
        (lambda found: setattr(found, "storage_data", None), "holds metadata without entries"),
    ],
)
def test_what_a_folder_names_is_compared_with_what_there_is(
    tmp_path: Path, change: Callable[[metadata.Metadata], None], error: str
) -> None:
    (tmp_path / "beside").write_bytes(bytes(5000))
    folder = hostile(tmp_path / "checkpoint", change)
    os.mkfifo(folder / "fifo")
    (folder / "folder").mkdir()
    (folder / "link").symlink_to(tmp_path / "beside")
    with little_memory(), pytest.raises(ValueError, match=error) as raised:
        read(folder)
    assert KEY in str(raised.value) or ".metadata" in str(raised.value) or "isthmus.rank0" in str(raised.value)


def test_metadata_is_a_regular_file_of_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = saved(tmp_path, STATE)
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "MOST_TEXT_BYTES", 900)
        with pytest.raises(ValueError, match=r"\.metadata was not loaded: it has \d+ bytes: expected at most 900"):
            read(folder)
        patched.setattr(checkpoint, "MOST_TEXT_BYTES", 1200)
        with pytest.raises(ValueError, match=r"'isthmus.rank0' in __0_0.distcp: it has \d+ bytes: expected 0 to 1200"):
            read(folder)
    (folder / ".metadata").unlink()
    os.mkfifo(folder / ".metadata")
    with pytest.raises(ValueError, match=r"\.metadata is not a regular file"):
        read(folder)


def nested(depth: int) -> bytes:
    """A dictionary whose key is a tuple of the next tuple, twice, and so on: hashing it visits 2 ** depth of them."""
    return b"\x80\x04}" + b")" + b"".join(b"q%cq%ch%c\x86" % (i, i, i) for i in range(depth)) + b"Ns."


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x04Nr\xff\xff\xff\xff.",  # C's unpickler would make room for 2^32 objects
        b"\x80\x05\x96" + HUGE.to_bytes(8, "little") + b".",  # a bytearray
        b"\x80\x04\x95" + HUGE.to_bytes(8, "little") + b"N.",  # a frame
        b"\x80\x04X" + (0xFFFFFFFF).to_bytes(4, "little") + b".",  # a text
        nested(60),
        b"\x80\x04(" + b"N" * 65 + b"t.",
        # An attribute of a constant of torch.
        b"ctorch.distributed.checkpoint.metadata\n_MEM_FORMAT_ENCODING\n(K\x00tR}X\x07\x00\x00\x00_value_K\x63sb.",
    ],
)
def test_pickles_allocate_and_compute_no_more_than_their_bytes(tmp_path: Path, content: bytes) -> None:
    folder = saved(tmp_path, STATE)
    (folder / ".metadata").write_bytes(content)
    with little_memory(), pytest.raises(ValueError, match=r"\.metadata (was not loaded|holds a NoneType)"):
        read(folder)
    assert metadata._MEM_FORMAT_ENCODING(0).value == 0


def compressed(content: bytes) -> bytes:
    """The archive with its values compressed: a small file of many elements."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/0", content)
    return made.getvalue()


@pytest.mark.parametrize(
    ("archive", "error"),
    [
        (compressed(bytes(12)), "its record data/0 is compressed"),
        (compressed(bytes(12))[:-10], "BadZipFile"),
        (b"", "it has 0 bytes: expected 12 to"),
    ],
)
def test_values_are_read_as_they_stand(tmp_path: Path, archive: bytes, error: str) -> None:
    def point_at_it(found: metadata.Metadata) -> None:
        place = place_of(found)
        place.relative_path, place.offset, place.length = "other", 0, len(archive)

    folder = hostile(tmp_path, point_at_it)
    (folder / "other").write_bytes(archive)
    with pytest.raises(ValueError, match=rf"'{KEY}' in other: {error}"):
        read(folder)


@pytest.mark.parametrize(
    ("name", "value"),
    [("num_elements", "6"), ("scale", None), ("sections", [["0", 3]]), ("parked", 7), ("parameters", 3), ("name", [])],
)
def test_descriptions_of_units_have_values_of_their_types(name: str, value: Any) -> None:
    text = to_text([SavedGroup((0,), (0,), {}, (replace(UNIT, **{name: value}),))])
    with pytest.raises(ValueError, match="'rank0' is damaged"):
        _ = source_of_state({"rank0": text}).ranks
