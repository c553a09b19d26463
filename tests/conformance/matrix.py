"""Run the conformance table and put its tables into docs/compatibility.md: ``python tests/conformance/matrix.py``.

The page counts for every version of torch that it was run with in this checkout, and shows the oldest and the newest:
build/conformance keeps what each found.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rows import COLLECTIVES, LABELS, OPS, OTHER_DTYPES, TAKEN_DTYPES, Row

if TYPE_CHECKING:
    from world import Results

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "build/conformance"
DOCUMENT = ROOT / "docs/compatibility.md"
TABLES = re.compile(r"^\| torch \| rows .*?(?=^## Where Gloo is not asked)", re.MULTILINE | re.DOTALL)
SIGNS = {"equal": "=", "close": "≈", "refused": "x", "more": "+", "gloo only": "Gloo", "absent": "-"}
REDUCING = [collective.name for collective in COLLECTIVES if collective.reduces]
MOVING = [collective.name for collective in COLLECTIVES if not collective.reduces]


def summary(results: Results) -> dict[str, Any]:
    """Return what is kept of a run: how many rows had which verdict, and the verdicts of the document's cells."""
    cells: dict[str, set[str]] = {}
    for row, verdict in results.verdicts.items():
        for key in _keys(row):
            cells.setdefault(key, set()).add(verdict if verdict in SIGNS else "fails")
    counts = Counter(verdict if verdict in SIGNS else "fails" for verdict in results.verdicts.values())
    return {
        "rows": dict(sorted(counts.items())),
        "cells": {key: ", ".join(sorted(found)) for key, found in sorted(cells.items())},
    }


def _keys(row: Row) -> Iterable[str]:
    """Name the cells of the document that a row belongs to: it differs from the plainest one on few axes."""
    plain = Row(row.collective, label=row.label)
    if row == replace(plain, dtype=row.dtype, op=row.op):
        yield f"{row.collective}|dtype={row.dtype}|op={row.op}|{row.label}"
    for axis in ("layout", "mode", "group"):
        if row == replace(plain, **{axis: getattr(row, axis)}):
            yield f"{row.collective}|{axis}={getattr(row, axis)}|{row.label}"
    if row == replace(plain, debug="detail"):
        yield f"{row.collective}|group=detail|{row.label}"


def all_results() -> dict[str, dict[str, Any]]:
    return {path.stem.removeprefix("torch-"): json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}


def tables(results: Mapping[str, dict[str, Any]]) -> str:
    parts = [_totals(results)]
    # What changes between versions shows at the ends; a sign for each of five versions would hide it.
    results = {version: results[version] for version in dict.fromkeys((min(results), max(results)))}
    dtypes = [*TAKEN_DTYPES, *OTHER_DTYPES]
    plain, _ = LABELS
    parts += _tables_of_collectives(results, REDUCING, "Types and operators of {}", dtypes, plain)
    parts.append(
        _table(results, "Types of what only moves", MOVING, dtypes, f"{{column}}|dtype={{row}}|op=sum|{plain}")
    )
    return "\n".join([*parts, _exceptions(results[max(results)], plain)]) + "\n"


def _totals(results: Mapping[str, dict[str, Any]]) -> str:
    verdicts = list(SIGNS)
    lines = ["| torch | rows | " + " | ".join(verdicts) + " |", "|---" * (len(verdicts) + 2) + "|"]
    lines += [totals(version, found) for version, found in results.items()]
    return "\n".join([*lines, ""])


def totals(version: str, found: Mapping[str, Any]) -> str:
    """Return the page's row of one version: how many rows of the table had which verdict."""
    counts = [str(found["rows"].get(verdict, 0)) for verdict in SIGNS]
    return f"| {version} | {sum(found['rows'].values())} | " + " | ".join(counts) + " |"


def _tables_of_collectives(
    results: Mapping[str, dict[str, Any]], names: Sequence[str], title: str, dtypes: Sequence[str], label: str
) -> list[str]:
    """Return tables of types and operators; collectives with the same table share it."""
    by_table: dict[str, list[str]] = {}
    for name in names:
        table = _table(results, title, OPS, dtypes, f"{name}|dtype={{row}}|op={{column}}|{label}")
        by_table.setdefault(table, []).append(f"`{name}`")
    return [table.format(", ".join(sharing)) for table, sharing in by_table.items()]


def _table(
    results: Mapping[str, dict[str, Any]], title: str, columns: Sequence[str], rows: Sequence[str], key: str
) -> str:
    """Return a table in which rows with equal cells are one, and then columns."""
    by_cells: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        keys = [key.format(row=row, column=column) for column in columns]
        cells = tuple(_sign([found["cells"].get(key, "") for found in results.values()]) for key in keys)
        if any(cells):
            by_cells.setdefault(cells, []).append(row)
    alike: dict[tuple[str, ...], list[str]] = {}
    for column, cells in zip(columns, zip(*by_cells, strict=True), strict=True):
        alike.setdefault(cells, []).append(column)
    lines = [
        f"### {title}",
        "",
        "| | " + " | ".join(map(", ".join, alike.values())) + " |",
        "|---" * (len(alike) + 1) + "|",
    ]
    for names, cells in zip(by_cells.values(), zip(*alike, strict=True), strict=True):
        lines.append(f"| {', '.join(names)} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])


def _exceptions(found: Mapping[str, Any], label: str) -> str:
    """Return what there is on the other axes, and a table of what is not equal; calls with equal cells share a row."""
    axes = {"layout": "Layouts", "mode": "ways to call and to wait", "group": "groups"}
    signs: dict[str, dict[str, str]] = {}  # by call and value, both in the order of the table
    values: dict[str, list[str]] = {axis: [] for axis in axes}
    for key, verdict in found["cells"].items():
        call, what, of_label = key.split("|", 2)
        axis, _, value = what.partition("=")
        if axis in axes and of_label == label:
            signs.setdefault(call, {})[value] = _sign([verdict])
            values[axis] += [] if value in values[axis] else [value]
    names = [collective.name for collective in COLLECTIVES]
    scenarios = sorted(signs.keys() - set(names))
    others = [sign for sign in SIGNS.values() if sign != "=" and any(sign in of.values() for of in signs.values())]
    alike: dict[tuple[str, ...], list[str]] = {}
    for call in [*names, *scenarios]:
        cells = []
        for sign in others:
            having = [value for axis in axes for value in values[axis] if signs[call].get(value) == sign]
            cells.append("all" if len(having) == len(signs[call]) else ", ".join(having))
        if any(cells):
            alike.setdefault(tuple(cells), []).append(call)
    lines = [
        "### " + ", ".join(axes.values()),
        "",
        *(f"- {title}: {', '.join(values[axis])}" for axis, title in axes.items()),
        f"- whole scenarios: {', '.join(scenarios)}",
        "",
        "All are `=` but:",
        "",
        "| | " + " | ".join(others) + " |",
        "|---" * (len(others) + 1) + "|",
        *(f"| {', '.join(calls)} | {' | '.join(cells)} |" for cells, calls in alike.items()),
    ]
    return "\n".join([*lines, ""])


def _sign(of_versions: Sequence[str]) -> str:
    """Return one sign where all versions agree, else one for each, oldest first."""
    signs = ["".join(SIGNS.get(verdict, "FAILS") for verdict in found.split(", ") if found) for found in of_versions]
    return signs[0] if len(set(signs)) == 1 else " / ".join(sign or "·" for sign in signs)


def main() -> int:
    import world

    results = world.run(world.all_rows())
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"torch-{world.TORCH}.json").write_text(json.dumps(summary(results), indent=0) + "\n")
    for row, verdict in results.failures().items():
        print(f"{row}: {verdict}")
    failures = len(results.failures())
    print(f"{len(results.verdicts)} rows, {failures} failures")
    made = tables(all_results())
    DOCUMENT.write_text(TABLES.sub(lambda _: made, DOCUMENT.read_text()))
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
