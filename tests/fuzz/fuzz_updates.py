"""Fuzzes isthmus.weights.apply: an update is applied, or its own error says what is wrong; old weights stay.

Run by tests/fuzz/run.py with libFuzzer's flags. The first byte of an input says whether checksums are made to fit: bit
0 of the table, bit 1 of the record, if there is one.
"""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

import atheris

TESTS = Path(__file__).resolve().parents[1]
# An editable installation imports through a finder of its own, whose modules atheris cannot instrument.
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in type(finder).__module__]
sys.path[:0] = [str(TESTS.parent / "python"), str(TESTS), str(TESTS / "fuzz")]

import seeds  # noqa: E402
import torch  # noqa: E402  # not to be counted, and it imports isthmus

import isthmus  # noqa: E402

isthmus.__path__.append(f"{sysconfig.get_paths()['platlib']}/isthmus")  # where the native module is
with atheris.instrument_imports(include=["isthmus.weights"]):
    from isthmus.weights import apply

from support.updates import HEAD, RECORD_HEAD, parts_of, sealed, update_of  # noqa: E402

OLD = seeds.old_weights()
BEFORE = {name: tensor.clone() for name, tensor in OLD.items()}


def apply_update(data: bytes) -> None:
    """Whatever the bytes are."""
    update = data[1:]
    if data[:1] and data[0] % 2 and len(update) >= HEAD.size:
        table, records = parts_of(update)
        update = update_of(table, sealed(records) if data[0] & 2 and len(records) >= RECORD_HEAD else records)
    for old in (OLD, OLD["a"]):
        try:
            result = apply(old, update)
        except isthmus.Error as error:
            assert str(error)
        else:
            pairs = [(old, result)] if isinstance(old, torch.Tensor) else [(old[name], result[name]) for name in result]
            assert all((was.shape, was.dtype) == (now.shape, now.dtype) for was, now in pairs)
    assert all(torch.equal(OLD[name], BEFORE[name]) for name in OLD)


if __name__ == "__main__":
    atheris.Setup(sys.argv, apply_update)
    atheris.Fuzz()
