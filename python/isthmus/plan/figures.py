"""The form of all tables: names, and columns of figures behind them."""

from collections.abc import Sequence

from rich.box import SIMPLE
from rich.table import Table


def figures_table(named: str, title: str, columns: Sequence[str]) -> Table:
    """A table without rows. named: the head of the first column."""
    table = Table(title=title, title_justify="left", box=SIMPLE)
    table.add_column(named, no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table
