"""Documents name paths of the repository that exist."""

import re
from pathlib import Path

import pytest

from support.places import ROOT

DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
# Whatever begins so is meant to be in the repository; other paths are of builds, of machines, or made up.
FOLDERS = [
    ".ci",
    "benchmarks",
    "cmake",
    "docs",
    "examples",
    "include",
    "kernels",
    "python",
    "src",
    "tests",
    "tools",
    "topology",
]
CODE = re.compile(r"```.*?```|`[^`]+`", re.DOTALL)
PATH = re.compile(rf"(?<![\w./-])(?:{'|'.join(map(re.escape, FOLDERS))})/[\w./*<>-]*")
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


def missing_paths(text: str) -> list[str]:
    """Return the paths in code that lead nowhere. `*` stands for anything, as does NAME; `<name>` is not there yet."""
    paths = [path.rstrip(".") for code in CODE.findall(text) for path in PATH.findall(code)]
    return [path for path in paths if "<" not in path and not any(ROOT.glob(path.replace("NAME", "*")))]


def missing_targets(text: str, folder: Path) -> list[str]:
    """Return the targets of links that lead nowhere from this folder."""
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return [target for target in LINK.findall(prose) if not (folder / target).exists()]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_paths_exist(document: Path) -> None:
    assert missing_paths(document.read_text()) == []


def test_links_between_documents_lead_somewhere() -> None:
    for document in DOCUMENTS:
        missing = missing_targets(document.read_text(), document.parent)
        assert missing == [], document.name


def test_what_is_not_there_is_found() -> None:
    text = """`tests/run` and `python tools/mutate`, [here](testing.md) and [there](testing.txt#a), `src/*/none.zip`
```sh
build/x; cat ./docs/nothing.md; pytest tests/python/docs/test_paths.py src/<codec>/x kernels/NAME/; cat docs/gone.md.
```"""
    assert missing_paths(text) == ["tests/run", "src/*/none.zip", "docs/gone.md"]
    assert missing_targets(text, ROOT / "docs") == ["testing.txt"]
