"""The program of the README."""

import re

from support.places import ROOT

_found = re.search(r"```python\n(# train\.py.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
assert _found, "README.md has no train.py"
TRAIN = _found[1]
