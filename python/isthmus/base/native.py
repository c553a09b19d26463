"""Loads the native module, after a check that it was built for the torch that is running.

Torch promises no C++ ABI, but patch releases keep it: all headers and all of torch.distributed are equal in 2.12.0 and
2.12.1, and in 2.14.0 and 2.14.1. Were a function gone, the dynamic linker would name it when the module is loaded.
"""

from __future__ import annotations

import functools
import re
from types import ModuleType


def fitting(version: str) -> str:
    """Return what all versions of torch have in common that one build fits: 2.15+cu132 of 2.15.1+cu132.

    A version that is no release, such as 2.16.0a0+git08187d9, fits no other one.
    """
    return re.sub(r"^(\d+\.\d+)\.\d+(?=\+|$)", r"\1", version)


@functools.cache
def load() -> ModuleType:
    """Return ``isthmus._C``. Raises ImportError, in one sentence, if it does not fit the running torch."""
    import torch

    from isthmus._build_info import TORCH_VERSION
    from isthmus.base.error_reports import tell_uncaught_once

    running = str(torch.__version__)
    refusal = (
        f"isthmus was built for torch {TORCH_VERSION}, but torch {running} is running: install the wheel whose "
        f"version ends in +torch{fitting(running).replace('+', '.')}, or from sources with "
        "`pip install --no-build-isolation --force-reinstall --no-deps .`"
    )
    if fitting(running) != fitting(TORCH_VERSION):
        raise ImportError(refusal)
    try:
        from isthmus import _C
    except ImportError as error:
        if running == TORCH_VERSION:
            raise
        raise ImportError(f"{refusal} ({error})") from error
    tell_uncaught_once(_C)
    return _C
