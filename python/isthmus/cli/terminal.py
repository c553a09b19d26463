"""How every command prints and fails: errors that a user can cause give one message and an exit code, no traceback."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

import typer
from rich.console import Console

#: Wide enough for trees and tables: on a narrow terminal a line runs on rather than be cut.
WIDTH = 240
FAILED = 1
INTERRUPTED = 130


@contextmanager
def failures_told(extra: str = "") -> Iterator[None]:
    """Turn errors that a user can cause into one message and a non-zero exit code, after all clean-up.

    `extra` is the optional dependency of the package that brings the modules this command imports.
    """
    from isthmus.benchmarks.simulate.network import NetworkError
    from isthmus.benchmarks.simulate.ranks import RankFailure

    try:
        yield
    except ModuleNotFoundError as error:
        if not extra:
            raise
        fail(f"{error}: this command needs `pip install isthmus[{extra}]`", error)
    except (RankFailure, NetworkError) as error:
        fail(str(error), error)
    except ValueError as error:
        if type(error).__name__ == "TopologyError":  # of a module that other commands do not need
            fail(str(error), error)
        raise typer.BadParameter(str(error)) from error
    except OSError as error:
        if error.filename is None:  # no file that the user named
            raise
        fail(f"{error.filename}: {error.strerror}", error)
    except KeyboardInterrupt:
        print("isthmus: interrupted; nothing is left running", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None


def fail(message: str, cause: Exception | None = None) -> NoReturn:
    """Print one line and end with exit code 1."""
    print(f"isthmus: {message}", file=sys.stderr)
    raise typer.Exit(FAILED) from cause


def run(app: typer.Typer) -> None:
    """Run a process's command. SIGTERM cleans up like Ctrl-C."""
    signal.signal(signal.SIGTERM, _interrupt)
    app()


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def console() -> Console:
    """As wide as the terminal; wide enough for every table where the output goes into a pipe or a file."""
    return Console(width=None if sys.stdout.isatty() else WIDTH)
