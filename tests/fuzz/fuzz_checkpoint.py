"""Fuzzes the reader of checkpoints: an input is read, or the reader's own error says what is wrong with it.

Run by tests/fuzz/run.py with libFuzzer's flags.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import atheris

TESTS = Path(__file__).resolve().parents[1]
# An editable installation imports through a finder of its own, whose modules atheris cannot instrument.
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in type(finder).__module__]
sys.path[:0] = [str(TESTS.parent / "python"), str(TESTS)]

import torch  # noqa: E402, F401  # not to be counted, and it imports isthmus

with atheris.instrument_imports(include=["isthmus.residuals"]):
    from isthmus.residuals.saved_state import RESIDUALS, source_of_checkpoint


FOLDER = TemporaryDirectory()


def read_checkpoint(data: bytes) -> None:
    """The bytes of `.metadata`, as many as the first two say, and those of the one file beside it."""
    metadata_bytes = 2 + int.from_bytes(data[:2], "little")
    (Path(FOLDER.name) / ".metadata").write_bytes(data[2:metadata_bytes])
    (Path(FOLDER.name) / "__0_0.distcp").write_bytes(data[metadata_bytes:])
    try:
        source = source_of_checkpoint(FOLDER.name, "isthmus")
        for rank, groups in source.ranks.items():
            for index, group in enumerate(groups):
                source.check(rank, index)
                for place, unit in enumerate(group.units):
                    found = source.residuals(rank, index, place)
                    assert [found[kind].numel() for kind in RESIDUALS] == [
                        getattr(unit, f"{kind}_elements") for kind in RESIDUALS
                    ]
    except ValueError as error:
        assert str(error)


if __name__ == "__main__":
    atheris.Setup(sys.argv, read_checkpoint)
    atheris.Fuzz()
