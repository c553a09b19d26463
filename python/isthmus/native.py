"""Loads the native module, after a check that it was built for the torch that is running."""

from __future__ import annotations

import sys
from types import ModuleType


def load() -> ModuleType:
    """Return ``isthmus._C``. Raises ImportError, in one sentence, if it does not fit the running torch."""
    import torch

    from isthmus._build_info import TORCH_VERSION

    running = str(torch.__version__)
    if running != TORCH_VERSION:
        raise ImportError(
            f"isthmus was built for torch {TORCH_VERSION}, but torch {running} is running: install the wheel whose "
            f"version ends in +torch{running.replace('+', '.')}, or from sources with "
            "`pip install --no-build-isolation --force-reinstall --no-deps .`"
        )
    is_loaded = "isthmus._C" in sys.modules
    from isthmus import _C

    if not is_loaded:
        from isthmus.error_reports import tell_uncaught_once

        tell_uncaught_once(_C)
    return _C
