"""Files of code are shorter than CONTRIBUTING.md says, or stand on a list. Their comments name their subject."""

from __future__ import annotations

import os
import re
from pathlib import Path

from python.docs import test_paths
from support.places import ROOT

LIMIT = 400
FOLDERS = [folder for folder in test_paths.FOLDERS if folder != "docs"]
SUFFIXES = {".cpp", ".h", ".cu", ".cuh", ".py", ".pyi", ".cmake", ".sh", ".yml", ".yaml", ".toml", ""}
# Each is to be split by whoever changes it next.
LONGER = {
    "src/torch/cuda/cuda_side.cpp",
    "src/torch/module/module.cpp",
    "tests/python/attached/test_attach.py",
}
BEGINS_WITHOUT_SUBJECT = re.compile(r'(// |# |#: |"""|\. |^)(Of|What of) [a-z]', re.MULTILINE)


def files_of_code() -> list[Path]:
    files = [Path(folder) / name for top in FOLDERS for folder, _, names in os.walk(ROOT / top) for name in names]
    return [file for file in files if file.suffix in SUFFIXES]


def test_no_comment_begins_with_of() -> None:
    texts = {file: file.read_text() for file in files_of_code()}
    found = [f"{file}: {match[0]}" for file, text in texts.items() for match in BEGINS_WITHOUT_SUBJECT.finditer(text)]
    assert not found


def test_files_of_code_are_short_but_for_those_on_the_list() -> None:
    code = files_of_code()
    assert all(any(file.is_relative_to(ROOT / top) for file in code) for top in FOLDERS)
    longer = {str(file.relative_to(ROOT)) for file in code if len(file.read_text().splitlines()) >= LIMIT}
    assert longer == LONGER
