"""The documents say what the code does."""

import re
import subprocess

import pytest

import isthmus
from isthmus import native as _native
from isthmus.cli.bench import bench
from support.documents import DOCUMENTS
from support.limits import HANG_S
from support.places import ROOT


def test_every_option_stands_in_the_table():
    table = (ROOT / "docs/operate.md").read_text()
    defaults = isthmus.Options()
    for name, variable, value_range, meaning, users in _native.load().option_fields():
        value = getattr(defaults, name)
        default = "empty" if value == "" else f"`{str(value).lower() if isinstance(value, bool) else value}`"
        cells = [f"`{name}`", f"`{variable}`", default, value_range, users, meaning]
        row = "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
        assert row in table


def test_every_codec_has_a_page_and_an_id():
    packets = (ROOT / "docs/packet_format.md").read_text()
    for codec in _native.load().codecs():
        assert codec == "none" or (ROOT / f"docs/{codec}.md").exists()
        assert re.search(rf"\| codec \|.*\d `{codec}`", packets), codec


def test_every_reason_stands_in_a_list_in_order():
    reduced = (ROOT / "docs/algorithms.md").read_text().partition("**Reasons** ")[2].partition("\n\n")[0]
    gathered = (ROOT / "docs/weights.md").read_text().partition("## Gathers that cross whole")[2].partition("\n## ")[0]
    named = [" ".join(one.split()) for one in re.findall("`(.*?)`", reduced + gathered, re.DOTALL)]
    reasons = [reason.text for reason in _native.load().Reason.__members__.values()]
    assert list(dict.fromkeys(one for one in named if one in reasons)) == reasons


@pytest.mark.processes
def test_commits_that_documents_name_are_in_the_repository():
    named = {found for document in DOCUMENTS for found in re.findall(r"\bcommit\s+`(\w+)`", document.read_text())}
    assert len(named) > 3
    asked = "".join(f"{commit}\n" for commit in sorted(named))
    program = ["git", "cat-file", "--batch-check=%(objecttype)"]
    result = subprocess.run(program, cwd=ROOT, input=asked, capture_output=True, text=True, timeout=HANG_S)
    answers = dict(zip(sorted(named), result.stdout.splitlines(), strict=True))
    assert {commit for commit, answer in answers.items() if answer != "commit"} == set(), result.stderr


def test_every_benchmark_is_documented():
    pages = "".join(document.read_text() for document in DOCUMENTS)
    names = [command.name or command.callback.__name__ for command in bench.registered_commands]
    assert "training" in names
    assert [name for name in names if f"`isthmus bench {name}" not in pages] == []
