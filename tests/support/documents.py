"""Programs that stand in documents."""

from __future__ import annotations

import re

from support.places import ROOT


def programs(document: str) -> dict[str, str]:
    """Return the Python programs of a document ("docs/recipes.md"), by the names that they begin with: # train.py."""
    found = re.findall(r"```python\n(# (\w+\.py).*?)```", (ROOT / document).read_text(), re.DOTALL)
    return {name: text for text, name in found}
