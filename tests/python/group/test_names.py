"""The package's names and its version."""

from __future__ import annotations

import tomllib

import isthmus
from isthmus import _build_info
from support.places import ROOT


def test_dir_shows_what_is_for_users_and_nothing_else() -> None:
    shown = [name for name in dir(isthmus) if not name.startswith("__")]
    assert shown == sorted(isthmus.__all__)
    for name in shown:
        assert getattr(isthmus, name) is not None


def test_there_is_one_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert isthmus.__version__ == _build_info.VERSION == version
    assert version not in (ROOT / "CMakeLists.txt").read_text()
