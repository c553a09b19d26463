"""Documents name paths of the repository, and sections of each other, that exist."""

import re
from pathlib import Path

import pytest

from support.documents import DOCUMENTS
from support.places import ROOT

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
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
LINE = re.compile(r"L\d+")  # of a source: tools/link_lines.py knows better


def name(document: Path) -> str:
    return str(document.relative_to(ROOT))


def missing_paths(text: str) -> list[str]:
    """Return the paths in code that lead nowhere. `*` stands for anything, as does NAME; `<name>` is not there yet."""
    paths = [path.rstrip(".") for code in CODE.findall(text) for path in PATH.findall(code)]
    return [path for path in paths if "<" not in path and not any(ROOT.glob(path.replace("NAME", "*")))]


def without_blocks(text: str) -> str:
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def sections(text: str) -> set[str]:
    """Return what links to the headings of this document end in."""
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in HEADING.findall(without_blocks(text))}


def missing_targets(text: str, folder: Path) -> list[str]:
    """Return the targets of links that lead nowhere from this folder."""
    missing = []
    for target, section in LINK.findall(without_blocks(text)):
        path = folder / target
        if not path.exists():
            missing.append(target)
        elif section and not LINE.fullmatch(section):
            linked = path.read_text() if target else text
            missing += [] if section in sections(linked) else [f"{target}#{section}"]
    return missing


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_paths_exist(document: Path) -> None:
    assert missing_paths(document.read_text()) == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_links_lead_somewhere(document: Path) -> None:
    assert missing_targets(document.read_text(), document.parent) == []
