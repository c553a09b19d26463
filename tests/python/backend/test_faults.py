"""A rank that dies, stops, or goes elsewhere: the others get an error that names it, in time."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from faults import harness, table
from faults.rows import ROWS, Row


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[list[harness.RankOutcome]]]]:
    selected = [item for item in request.session.items if getattr(item, "originalname", "") == test_fault.__name__]
    with harness.running([item.callspec.params["row"] for item in selected]) as futures:
        yield futures


@pytest.mark.processes
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_fault(row: Row, outcomes: dict[str, Future[list[harness.RankOutcome]]]) -> None:
    assert not (lacking := list(harness.complaints(row, outcomes[row.name].result()))), "\n".join(lacking)


def test_the_page_has_the_rows_of_the_table() -> None:
    rows = [line for line in table.PAGE.read_text().splitlines() if line.startswith("| ")][1:]
    assert [tuple(line[2:].split(" | ")[:2]) for line in rows] == [table.begin(row) for row in ROWS]
    assert all(line.endswith(" | yes |") for line in rows)
