"""Tells whether isthmus is imported from where it was installed, and what its native module was built against."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from gpu.programs import FAILED, OK, Check


def main() -> int:
    """Return the exit status."""
    start = time.monotonic()
    import isthmus
    from isthmus import _build_info
    from isthmus.base import native as _native

    _native.load()
    place = Path(isthmus.__file__).resolve()
    expected = Path(os.environ["PYTHONPATH"].split(os.pathsep)[0]).resolve()
    built = {name.lower(): value for name, value in vars(_build_info).items() if name.isupper()}
    is_right = place.is_relative_to(expected)
    detail = "" if is_right else f"isthmus is {place}, not below {expected}"
    print(Check("import isthmus", OK if is_right else FAILED, time.monotonic() - start, detail, built).line())
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
