"""python -m gpu.worlds NAME...: run worlds one after the other, and tell of their checks. tests/ is in PYTHONPATH."""

from __future__ import annotations

import argparse
import sys

from gpu.worlds.launch import launch

NAMES = ("collectives", "training", "capture", "profile", "killed")


def main() -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m gpu.worlds", description="Run worlds of four ranks.")
    parser.add_argument("names", nargs="+", choices=NAMES, metavar="NAME", help=f"of {', '.join(NAMES)}; killed: alone")
    parser.add_argument("--short", action="store_true", help="fewer steps and modes")
    options = parser.parse_args()
    return launch(options.names, short=options.short)


if __name__ == "__main__":
    sys.exit(main())
