"""The documents say what the code does: options, commands and their answers, paths, links, figures."""

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import isthmus
from isthmus.base import native as _native
from isthmus.cli.bench import bench
from isthmus.cli.main import app
from support.documents import DOCUMENTS, ShownCommand, shown_commands
from support.limits import HANG_S
from support.places import ROOT


def test_every_option_stands_in_the_table():
    table = (ROOT / "docs/operate.md").read_text()
    defaults = isthmus.Options()
    for name, variable, value_range, meaning, users in _native.load().option_fields():
        assert variable == f"ISTHMUS_{name.upper()}"  # as the page says
        value = getattr(defaults, name)
        default = "empty" if value == "" else f"`{str(value).lower() if isinstance(value, bool) else value}`"
        cells = [f"`{name}`", default, value_range, users, meaning]
        row = "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
        assert row in table


def test_every_codec_has_a_page_and_an_id():
    packets = (ROOT / "docs/packet_format.md").read_text()
    for codec in _native.load().codecs():
        assert codec == "none" or (ROOT / f"docs/{codec}.md").exists()
        assert re.search(rf"\| codec \|.*\d `{codec}`", packets), codec


def test_every_reason_of_a_gather_stands_in_a_list_in_order():
    gathered = (ROOT / "docs/weights.md").read_text().partition("## Gathers that cross whole")[2].partition("\n## ")[0]
    named = [" ".join(one.split()) for one in re.findall("`(.*?)`", gathered, re.DOTALL)]
    reasons = [reason.text for reason in _native.load().Reason.__members__.values()]
    of_gathers = reasons[reasons.index(_native.load().Reason.FIRST_GATHER.text) :]
    assert [one for one in named if one in reasons] == of_gathers


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
    commands = [f"isthmus bench {name}" for name in names]
    commands += [f"python -m isthmus.benchmarks.{path.parent.name}" for path in ROOT.glob("benchmarks/*/__main__.py")]
    assert [command for command in commands if f"`{command}" not in pages] == ["python -m isthmus.benchmarks.simulate"]


# What is not run here, by how the command begins, and why.
NOT_RUN = {
    "run bench training --here": "it trains for minutes, and its figures are those of a cluster's links",
    "torchrun --nnodes 2": "it takes two hosts; tests/python/docs/test_examples.py runs it in two namespaces",
}
SHOWN = [
    shown for document in DOCUMENTS for shown in shown_commands(document.read_text(), str(document.relative_to(ROOT)))
]


@pytest.mark.parametrize(
    "shown",
    [shown for shown in SHOWN if not shown.command.startswith(tuple(NOT_RUN))],
    ids=lambda shown: f"{shown.document}: {shown.command}",
)
def test_a_command_prints_what_its_document_shows(
    shown: ShownCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "topology").symlink_to(ROOT / "topology")
    monkeypatch.chdir(tmp_path)  # it may write files
    program, *arguments = shlex.split(shown.command)
    assert program == "isthmus", "a command that this test cannot run, nor a reason for it in NOT_RUN"
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert shown.is_answered_by(result.stdout), result.stdout


# Whatever begins so is meant to be in the repository; other paths are of builds, of machines, or made up.
FOLDERS = [
    *(".ci", "benchmarks", "cmake", "docs", "examples", "include", "kernels"),
    *("findings", "python", "src", "tests", "tools", "topology"),
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
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in HEADING.findall(without_blocks(text))}


def missing_targets(text: str, folder: Path) -> list[str]:
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


LIMIT = 400
SUFFIXES = {".cpp", ".h", ".cu", ".cuh", ".py", ".pyi", ".cmake", ".sh", ".yml", ".yaml", ".toml", ""}
# Each is to be split by whoever changes it next.
LONGER = {
    "src/torch/cuda/cuda_side.cpp",
    "src/torch/module/module.cpp",
    "tests/python/model/test_attach.py",
}


def test_files_of_code_are_short_but_for_those_on_the_list() -> None:
    files = [path for top in FOLDERS if top != "docs" for path in (ROOT / top).rglob("*") if path.is_file()]
    code = [path for path in files if path.suffix in SUFFIXES]
    assert len(code) > 500
    longer = {str(file.relative_to(ROOT)) for file in code if len(file.read_text().splitlines()) >= LIMIT}
    assert longer == LONGER


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
