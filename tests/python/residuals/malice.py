"""Something that a pickle may do to whoever loads it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


class MakesFolder:
    """What it is pickled as makes a folder when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)
