"""Every collective gives what Gloo gives: the whole table, and the page that counts it."""

import matrix
import pytest
import world
from rows import PREMULTIPLYING, Row, is_asked_plainly
from verdicts import CLOSE, GLOO_ONLY, MORE

ROWS = world.all_rows()
COLLECTIVES = list(dict.fromkeys(row.collective for row in ROWS))


@pytest.fixture(scope="session")
def results() -> world.Results:
    return world.run(ROWS)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_conforms_to_gloo(results: world.Results, collective: str) -> None:
    failures = [f"{row}: {verdict}" for row, verdict in results.failures().items() if row.collective == collective]
    assert not failures, "\n".join(failures)


def test_gives_more_than_gloo_only_where_it_says_so(results: world.Results) -> None:
    def documented(row: Row) -> bool:
        premultiplied = row.op in PREMULTIPLYING
        any_layout = row.collective == "all_gather_into_tensor" or row.label == "gradient"
        return premultiplied or any_layout or row.collective == "all_to_all" or is_asked_plainly(row)

    assert [str(row) for row, verdict in results.verdicts.items() if verdict == MORE and not documented(row)] == []
    assert {row.collective for row, verdict in results.verdicts.items() if verdict == GLOO_ONLY} <= {
        "monitored_barrier"
    }


def test_only_gradients_are_summed_in_another_order(results: world.Results) -> None:
    close = [row for row, verdict in results.verdicts.items() if verdict == CLOSE]
    assert close
    assert {row.label for row in close} == {"gradient"}


def test_the_table_takes_two_tiers(results: world.Results) -> None:
    assert all(
        results.two_tier_calls[kind] > 0 for kind in ("reduce_scatter", "all_gather", "all_reduce", "compressed")
    )


def test_the_page_counts_what_this_torch_gives(results: world.Results) -> None:
    found = matrix.summary(results)
    lines = matrix.DOCUMENT.read_text().splitlines()
    of_this_torch = [line for line in lines if line.startswith(f"| {world.TORCH} |")]
    assert of_this_torch == [matrix.totals(world.TORCH, found)], "run tests/conformance/matrix.py"
