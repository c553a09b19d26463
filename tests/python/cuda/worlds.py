"""When tests of the backend's half for CUDA run, and what they share."""

from __future__ import annotations

import pytest

from support import fake_gpu


def _why_not() -> str:
    try:
        from isthmus._build_info import CUDA
    except ImportError:
        CUDA = ""
    return fake_gpu.why_not() or ("" if CUDA else "isthmus was built without CUDA")


needs_fake_gpu = pytest.mark.skipif(bool(reason := _why_not()), reason=reason)
