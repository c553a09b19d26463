"""`isthmus perf`: starts isthmus_perf, where it was built."""

import os
import shutil
from pathlib import Path
from typing import NoReturn

import isthmus
from isthmus.cli.failures import fail

PROGRAM = "isthmus_perf"
#: What its options are for: everything goes to the program, `--help` too.
SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def find_program() -> str | None:
    """The program that was installed with the package, else the one on PATH; None: neither."""
    installed = Path(isthmus.__file__).parent / PROGRAM
    return str(installed) if os.access(installed, os.X_OK) else shutil.which(PROGRAM)


def start_perf(arguments: list[str]) -> NoReturn:
    """Become the program. Ends with one line where there is none."""
    program = find_program()
    if program is None:
        fail(
            f"{PROGRAM} is neither installed with the package nor on PATH: install the package with "
            "`--config-settings=cmake.define.ISTHMUS_BUILD_BENCHMARKS=ON`, or build it alone with `cmake --preset "
            f"release && cmake --build --preset release --target {PROGRAM}` (docs/without_torch.md)"
        )
    os.execv(program, [PROGRAM, *arguments])
