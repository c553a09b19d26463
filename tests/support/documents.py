"""Programs and commands that stand in documents."""

import re
from typing import NamedTuple

from support.places import ROOT

DOCUMENTS = sorted(
    {
        path
        for pattern in ("*.md", "docs/*.md", "*/README.md", "examples/*/README.md", "tests/*/README.md")
        for path in ROOT.glob(pattern)
    }
)
# A block that begins with "$ ": a command, with a backslash at the end of each line but its last, and its answer.
_SHOWN = re.compile(r"^```\n\$ ((?:.*\\\n)*.*)\n((?:.*\n)*?)```", re.MULTILINE)


class ShownCommand(NamedTuple):
    document: str
    command: str
    answer: str

    def is_answered_by(self, printed: str) -> bool:
        """Whether `printed` is the answer, but for breaks of lines. A line `...` in the answer stands for any text."""
        parts = re.split(r"^\.\.\.$", self.answer, flags=re.MULTILINE)
        pattern = ".*".join(re.escape(_on_one_line(part)) for part in parts)
        return re.fullmatch(pattern, _on_one_line(printed)) is not None


def _on_one_line(text: str) -> str:
    return " ".join(text.split())


def programs(document: str) -> dict[str, str]:
    """Return the Python programs of a document ("docs/recipes.md"), by the names that they begin with: # train.py."""
    found = re.findall(r"```python\n(# (\w+\.py).*?)```", (ROOT / document).read_text(), re.DOTALL)
    return {name: text for text, name in found}


def shown_commands(text: str, document: str = "") -> list[ShownCommand]:
    found = _SHOWN.findall(text)
    return [ShownCommand(document, _on_one_line(command.replace("\\\n", "")), answer) for command, answer in found]
