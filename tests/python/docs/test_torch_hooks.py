"""Private names of torch are read in one package alone, and the page for torch's maintainers has them all."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from itertools import chain

from support.places import ROOT

PACKAGE = ROOT / "python/isthmus/torch_private"
LABELS = ROOT / "src/torch/units/gradient_labels.cpp"
SECTION = re.compile(r"^# --- (.*) ---\n# Instead: ((?:.|\n# )*)\n", re.MULTILINE)
PRIVATE = re.compile(r"_[a-zA-Z]\w*")
# Private names of others: Python's, Isthmus's modules and what its native module binds, and torchft's.
OF_OTHERS = {
    *("_exit", "_getframe", "_C", "_build_info", "_mpi", "_topology", "_without_effect"),
    *("_StreamingDiLoCoFragment", "_allreduce_per_param", "_bucketize_and_allreduce", "_comm_hook", "_fragment_id"),
    "_fut",
}


def names_in(source: str) -> Iterator[str]:
    """Yield names that a source imports from torch, or reads of objects that are not its own."""
    nodes = list(ast.walk(ast.parse(source)))
    own = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    own |= {
        node.attr for node in nodes if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self", "cls")
    }
    for node in nodes:
        match node:
            case ast.Attribute(attr=name) if name not in own:
                yield name
            case ast.Call(
                func=ast.Name(id="getattr" | "hasattr" | "setattr"), args=[_, ast.Constant(value=str(name)), *_]
            ):
                yield name
            case ast.ImportFrom(module=str(module), names=names) if module.startswith("torch"):
                yield from chain(module.split("."), (alias.name for alias in names))


def private(names: Iterable[object]) -> set[str]:
    return {name for name in names if isinstance(name, str) and PRIVATE.fullmatch(name)} - OF_OTHERS


def rows() -> dict[str, tuple[list[str], str]]:
    """What is read and what would replace it, by what it is read for."""
    page = (ROOT / "docs/torch_hooks.md").read_text()
    found = re.findall(r"^\| (.*?) \| (.*?) \| (.*?) \|$", page, re.MULTILINE)[1:]
    return {purpose: (re.findall(r"`(.*?)`", names), hook) for purpose, names, hook in found if purpose != "---"}


def test_one_package_reads_private_names_of_torch() -> None:
    folders = (ROOT / "python/isthmus", ROOT / "benchmarks", ROOT / "examples")
    sources = {source for folder in folders for source in folder.rglob("*.py")} - set(PACKAGE.iterdir())
    assert len(sources) > 100
    assert {source.name: found for source in sources if (found := private(names_in(source.read_text())))} == {}


def test_the_page_has_them_with_their_hooks() -> None:
    listed = rows()
    num_private = 0
    for source in PACKAGE.glob("*.py"):
        _, *parts = SECTION.split(source.read_text())
        for title, hook, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
            names, hook_on_page = listed.pop(title)
            assert hook_on_page == hook.replace("\n# ", " ")
            assert [name for name in names if not re.search(rf"\b{re.escape(name)}\b", text)] == []
            strings = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
            known = private(chain(names_in(text), strings))
            assert known <= set(names), title
            num_private += len(known)
    assert num_private > 40
    ((names, _),) = listed.values()
    assert [name for name in names if name not in LABELS.read_text()] == []
