"""Who may use whom: includes of C++ point one way, Python has no import cycles, one reads torch's private names.

Components of Python: a folder without folders in it is one. In a folder that has some, each module is one of its own.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from graphlib import TopologicalSorter
from itertools import chain
from pathlib import Path

from support.places import ROOT

#: Folders with sources. A folder includes itself and what stands in lines below its own; of a line with several, none
#: includes another. "*": all that have no line of their own.
ORDER = """
src/torch/module
src/torch/backend
src/torch/cuda
src/torch/sides
src/torch/works
src/torch/faults src/torch/units
src/torch/base
src/core
src/communicator
src/communicator/path
src/communicator/plan
src/communicator/units
src/communicator/run
src/transport
src/cuda
kernels/*
src/codec
src/base
kernels
kernels/*/job.h kernels/*/layout.h
kernels/checksum kernels/elementwise
kernels/cuda
kernels/block
topology
include/isthmus
"""
LINES = [line.split() for line in ORDER.split("\n") if line]
#: Where the compiler looks for what is included.
PLACES = ("include", "src", ".")
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def line_of(path: Path) -> int | None:
    """Return the line of a source, by its path or its folder, and by name before by glob."""
    names = (path.relative_to(ROOT).as_posix(), path.parent.relative_to(ROOT).as_posix())
    exact = [number for number, patterns in enumerate(LINES) if set(names) & set(patterns)]
    by_glob = [n for name in names for n, patterns in enumerate(LINES) for one in patterns if matches(name, one)]
    return next(iter(exact + by_glob), None)


def matches(name: str, pattern: str) -> bool:
    """Whether a path is as a pattern says, whose stars stand for one folder or file."""
    return name.count("/") == pattern.count("/") and fnmatchcase(name, pattern)


def sources() -> list[Path]:
    folders = (ROOT / name for name in ("include", "kernels", "src", "topology"))
    return [
        path for folder in folders for path in sorted(folder.rglob("*")) if path.suffix in (".h", ".cpp", ".cu", ".cuh")
    ]


def includes() -> Iterator[tuple[Path, Path]]:
    """Yield sources with what they include of the project."""
    for path in sources():
        for name in INCLUDE.findall(path.read_text()):
            found = [ROOT / place / name for place in PLACES if (ROOT / place / name).exists()]
            assert found, f"{path.relative_to(ROOT)} includes {name}, which is not there"
            yield path, found[0]


def texts(pairs: Iterable[tuple[Path, Path]]) -> list[str]:
    return [f"{path.relative_to(ROOT)} includes {other.relative_to(ROOT)}" for path, other in pairs]


def test_includes_point_one_way() -> None:
    pairs = list(includes())
    assert [text for (path, _), text in zip(pairs, texts(pairs), strict=True) if line_of(path) is None] == []
    against_order = [
        (path, other)
        for path, other in pairs
        if line_of(path) >= line_of(other)  # type: ignore[operator]
        and not (path.parent == other.parent and line_of(path) == line_of(other))
    ]
    assert texts(against_order) == []


def test_each_line_has_sources() -> None:
    lines = set(map(line_of, sources()))
    assert [patterns for number, patterns in enumerate(LINES) if number not in lines] == []


#: Doors: what of a room, a folder that hides the rest, others may include. Its own headers stand for those below them.
DOORS = """
src/torch/module   kernels/*  kernels/weights/weight_packet.h kernels/tagc/flat.h kernels/block/instruction_set.h
src/torch/module   src/communicator/*  src/communicator/plan/policy.h src/communicator/path/segments.h
src/torch/backend  kernels/*
src/torch/backend  src/communicator/*  src/communicator/plan/policy.h src/communicator/units/unit.h
src/torch/cuda     kernels/*           kernels/weights/weight_coder.h
src/torch/cuda     src/communicator/*
src/torch/units    kernels/*
src/torch/units    src/communicator/path
src/torch/units    src/communicator/plan  src/communicator/plan/policy.h
src/torch/*        src/codec
src/communicator   kernels/*
src/communicator/* kernels/*           kernels/tagc/flat.h kernels/weights/weight_coder.h
src/communicator/units  src/communicator/plan
src/transport      kernels/*           kernels/block/float_types.h
"""


def test_rooms_are_entered_by_their_doors() -> None:
    rows = [line.split() for line in DOORS.split("\n") if line]
    assert len({folder_of(path) for path in sources()}) > 20
    beside_doors = []
    used = set()
    for path, other in includes():
        for who, room, *doors in rows:
            if matches(folder_of(path), who) and matches(folder_of(other), room):
                name = other.relative_to(ROOT).as_posix()
                used.add((who, name))
                if name not in doors:
                    beside_doors.append((path, other))
    assert texts(beside_doors) == []
    assert {(who, door) for who, _, *doors in rows for door in doors} <= used, "a door that nobody uses"


def folder_of(path: Path) -> str:
    return path.parent.relative_to(ROOT).as_posix()


#: Folders with Python that is installed, by the package that they are. A link to the last is in the first.
PACKAGES = {"isthmus": "python/isthmus", "isthmus.benchmarks": "benchmarks"}

Imports = dict[str, set[str]]  # by importing module


def modules() -> dict[str, Path]:
    found = {}
    for package, folder in PACKAGES.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
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
    packages = {module for module, path in known.items() if path.name == "__init__.py"}
    with_folders = {package.rpartition(".")[0] for package in packages}
    return {
        module: module if module in packages or module.rpartition(".")[0] in with_folders else module.rpartition(".")[0]
        for module in known
    }


def test_components_have_no_import_cycles() -> None:
    component_of = components(modules())
    graph: Imports = {}
    for module, imported in imports(modules(), all_of_it=True).items():
        own = component_of[module]
        graph.setdefault(own, set()).update({component_of[name] for name in imported} - {own})
    # Names imported from `isthmus` itself are public: `import isthmus` does not import all components.
    graph.pop("isthmus", None)
    assert {"isthmus.group.register", "isthmus.group.nodes", "isthmus.benchmarks.training"} <= set(graph)
    TopologicalSorter(graph).prepare()


def test_modules_have_no_import_cycles() -> None:
    TopologicalSorter(imports(modules(), all_of_it=False)).prepare()


def test_only_the_commands_import_benchmarks() -> None:
    for module, imported in imports(modules(), all_of_it=True).items():
        if not module.startswith(("isthmus.cli.", "isthmus.benchmarks")):
            assert not [name for name in imported if name.startswith("isthmus.benchmarks")], module


PACKAGE = ROOT / "python/isthmus/torch_private"
SECTION = re.compile(r"^# --- (.*) ---\n# Instead: ((?:.|\n# )*)\n", re.MULTILINE)
PRIVATE = re.compile(r"_[a-zA-Z]\w*")
# Private names of others: Python's, Isthmus's modules and what its native module binds, and torchft's.
OF_OTHERS = {
    *("_exit", "_getframe", "_C", "_build_info", "_mpi", "_topology", "_without_effect"),
    *("_StreamingDiLoCoFragment", "_allreduce_per_param", "_bucketize_and_allreduce", "_comm_hook", "_fragment_id"),
    *("_fut", "_quorum_id", "_uuid"),
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


def test_one_package_reads_private_names_of_torch() -> None:
    folders = (ROOT / "python/isthmus", ROOT / "benchmarks", ROOT / "examples")
    sources = {source for folder in folders for source in folder.rglob("*.py")} - set(PACKAGE.iterdir())
    assert len(sources) > 100
    assert {source.name: found for source in sources if (found := private(names_in(source.read_text())))} == {}


def test_each_private_name_stands_under_the_hook_that_would_replace_it() -> None:
    num_private = 0
    for source in PACKAGE.glob("*.py"):
        before, *parts = SECTION.split(source.read_text())
        assert private(names_in(before)) == set(), source
        assert all(hook.strip() for hook in parts[1::3])
        num_private += sum(len(private(names_in(text))) for text in parts[2::3])
    assert num_private > 40
