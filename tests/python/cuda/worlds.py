"""When tests of the backend's half for CUDA run."""

from __future__ import annotations

import pytest

from isthmus._build_info import CUDA
from support import fake_gpu

reason = fake_gpu.why_not() or ("" if CUDA else "isthmus was built without CUDA")
needs_fake_gpu = pytest.mark.skipif(bool(reason), reason=reason)
