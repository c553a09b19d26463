"""Where things are, and how programs that tests start find what tests share."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
# For the environment of a program that imports from tests/.
PYTHONPATH = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH", "")]))
