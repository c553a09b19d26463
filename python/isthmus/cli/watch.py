"""`isthmus watch FILE`: a line a minute of a training that runs."""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from isthmus.cli.failures import failures_told


def watch(
    file: Annotated[Path, typer.Argument(help="What isthmus.log_to(path) writes.")],
    every_s: Annotated[float, typer.Option(min=0.1, help="Seconds between lines.")] = 60,
    once: Annotated[bool, typer.Option("--once", help="Print what there is, and end.")] = False,
) -> None:
    """Print a line a minute of a training: bytes, compression, seconds waited. Ctrl-C ends it."""
    with failures_told():
        from isthmus.report.watch import Follower, head, row

        follower = Follower(file)
        shown = None
        is_empty = False
        print(head(), flush=True)
        while True:
            records = list(follower.new_records())
            if shown is None and not records and not is_empty:
                is_empty = True
                print(f"{file}: no step yet; isthmus.log_to writes every 100th, or as its every= says", file=sys.stderr)
            for record in records if once else records[-1:]:
                clock = time.strftime("%H:%M:%S", time.localtime(record["time_s"]))
                print(row(record, shown, clock), flush=True)
                shown = record
            if once:
                return
            time.sleep(every_s)
