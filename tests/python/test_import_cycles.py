"""Components of the installed package have no import cycles, and only the commands import benchmarks.

A folder without folders in it is one component. In a folder that has some, each module is a component of its own.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Folders with Python that is installed, by the package that they are. A link to the last is in the first.
PACKAGES = {"isthmus": "python/isthmus", "isthmus.benchmarks": "benchmarks"}

Imports = dict[str, set[str]]  # by importing module


def modules(root: Path = ROOT) -> dict[str, Path]:
    found = {}
    for package, folder in PACKAGES.items():
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root / folder).with_suffix("").parts
            if package != "isthmus" or f"isthmus.{parts[0]}" not in PACKAGES:
                found[".".join((package, *parts)).removesuffix(".__init__")] = path
    return found


@cache
def parsed(text: str) -> ast.Module:
    return ast.parse(text)


def statements(tree: ast.AST, all_of_it: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    """Import statements; without `all_of_it` those that run when the module is imported."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        later = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for_types = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
        if all_of_it or not (later or for_types):
            yield from statements(child, all_of_it)


def names_of(statement: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(statement, ast.Import):
        return [alias.name for alias in statement.names]
    assert statement.level == 0, "imports are absolute"
    return [f"{statement.module}.{alias.name}" for alias in statement.names]


def imports(known: Mapping[str, Path], all_of_it: bool) -> Imports:
    found: Imports = {}
    for module, path in known.items():
        found[module] = set()
        for statement in statements(parsed(path.read_text()), all_of_it):
            for name in names_of(statement):
                while name and name not in known:
                    name = name.rpartition(".")[0]
                if name and name not in (module, "isthmus"):
                    found[module].add(name)
    return found


def components(known: Mapping[str, Path]) -> dict[str, str]:
    """The component of each module."""
    packages = {module for module, path in known.items() if path.name == "__init__.py"}
    with_folders = {package.rpartition(".")[0] for package in packages}
    return {
        module: module if module in packages or module.rpartition(".")[0] in with_folders else module.rpartition(".")[0]
        for module in known
    }


def cycle(graph: Mapping[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


def between_components(known: Mapping[str, Path]) -> Imports:
    component_of = components(known)
    graph: Imports = {}
    for module, imported in imports(known, all_of_it=True).items():
        component = component_of[module]
        graph.setdefault(component, set()).update(
            component_of[name] for name in imported if component_of[name] != component
        )
    # Names imported from `isthmus` itself are public: `import isthmus` does not import all components.
    graph.pop("isthmus", None)
    return graph


def test_packages_have_no_import_cycles() -> None:
    graph = between_components(modules())
    assert {"isthmus.group.register", "isthmus.group.nodes", "isthmus.benchmarks.training"} <= set(graph)
    assert not cycle(graph)


def test_modules_have_no_import_cycles() -> None:
    graph = imports(modules(), all_of_it=False)
    assert not cycle(graph)


def test_only_the_commands_import_benchmarks() -> None:
    for module, imported in imports(modules(), all_of_it=True).items():
        if not module.startswith(("isthmus.cli.", "isthmus.benchmarks")):
            assert not [name for name in imported if name.startswith("isthmus.benchmarks")], module
