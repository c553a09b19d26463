"""Figures in documents stand where tools/figures.py puts them, in the form in which it writes them."""

from __future__ import annotations

import importlib.util
import re
import sys
from typing import Any

import pytest

from support.places import ROOT

SPECIFICATION = importlib.util.spec_from_file_location("figures", ROOT / "tools/figures.py")
assert SPECIFICATION and SPECIFICATION.loader
figures: Any = importlib.util.module_from_spec(SPECIFICATION)
sys.modules["figures"] = figures
SPECIFICATION.loader.exec_module(figures)

SECTIONS = {
    name: (document, of.command, render) for of in figures.FIGURES for name, (document, render) in of.sections.items()
}


def text_of(name: str) -> str:
    return str(figures.sections_of((ROOT / SECTIONS[name][0]).read_text())[name])


@pytest.mark.parametrize("name", SECTIONS)
def test_each_figure_says_what_made_it_and_on_which_commit(name: str) -> None:
    document, command, _ = SECTIONS[name]
    assert (ROOT / document).read_text().count(f"<!-- figures {name}: from here -->") == 1
    made = re.escape(figures.made_by(command, "COMMIT", "DAY", "MACHINE"))
    made = made.replace("COMMIT", "[0-9a-f]{7,40}").replace("DAY", r"20\d\d-\d\d-\d\d").replace("MACHINE", ".+")
    assert re.search(made, text_of(name)), made


def test_documents_have_no_other_figures() -> None:
    for document in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        marked = re.findall(r"<!-- figures (.+?): from here -->", document.read_text())
        assert marked == list(figures.sections_of(document.read_text()))
        assert all(SECTIONS[name][0] == str(document.relative_to(ROOT)) for name in marked)
