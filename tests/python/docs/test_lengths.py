"""Files of code are shorter than CONTRIBUTING.md says, or stand on a list."""

from __future__ import annotations

from python.docs import test_paths
from support.places import ROOT

LIMIT = 400
SUFFIXES = {".cpp", ".h", ".cu", ".cuh", ".py", ".pyi", ".cmake", ".sh", ".yml", ".yaml", ".toml", ""}
# Each is to be split by whoever changes it next.
LONGER = {
    "src/torch/cuda/cuda_side.cpp",
    "tests/python/attached/test_attach.py",
}


def test_files_of_code_are_short_but_for_those_on_the_list() -> None:
    files = [path for top in test_paths.FOLDERS if top != "docs" for path in (ROOT / top).rglob("*") if path.is_file()]
    code = [path for path in files if path.suffix in SUFFIXES]
    assert len(code) > 500
    longer = {str(file.relative_to(ROOT)) for file in code if len(file.read_text().splitlines()) >= LIMIT}
    assert longer == LONGER
