"""The console that commands print their tables on."""

import sys

from rich.console import Console

#: Wide enough for trees and tables: on a narrow terminal a line runs on rather than be cut.
WIDTH = 240


def console() -> Console:
    """As wide as the terminal; wide enough for every table where the output goes into a pipe or a file."""
    return Console(width=None if sys.stdout.isatty() else WIDTH)
