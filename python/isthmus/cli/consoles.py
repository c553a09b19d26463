"""The console that commands print their tables on."""

import sys

from rich.console import Console

from isthmus.topology.render.text import WIDTH


def console() -> Console:
    """As wide as the terminal; wide enough for every table where the output goes into a pipe or a file."""
    return Console(width=None if sys.stdout.isatty() else WIDTH)
