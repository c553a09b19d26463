"""Keeps links to lines of sources right: `[`TwoTierPath::encode`](../src/communicator/path/two_tier_path.cpp#L64)`.

Usage: link_lines.py [--check] PAGE.md... A link's code is looked for in the file that it leads to: the first line
that holds it as a whole word is the line of the link. --check changes nothing. Exit code 1 if a code is not in its
file, or if --check finds another line than the page says.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

LINK = re.compile(r"\[`(?P<code>[^`]+)`\]\((?P<path>[^)#\s]+)#L(?P<line>\d+)\)")


def line_of(code: str, path: Path) -> int | None:
    """Return the number of the first line with `code`, from 1; None where there is none."""
    wanted = re.compile(rf"(?<!\w){re.escape(code)}(?!\w)")
    lines = enumerate(path.read_text().splitlines(), start=1) if path.is_file() else ()
    return next((number for number, line in lines if wanted.search(line)), None)


def relinked(page: Path) -> tuple[str, list[str]]:
    """Return the page with the right lines, and what is wrong with its links."""
    wrong: list[str] = []

    def relink(match: re.Match[str]) -> str:
        code, path = match["code"], match["path"]
        line = line_of(code, page.parent / path)
        if line is None:
            wrong.append(f"{page}: `{code}` is not in {path}")
            return match[0]
        if line != int(match["line"]):
            wrong.append(f"{page}: `{code}` is in line {line} of {path}, not {match['line']}: `make format` mends it")
        return f"[`{code}`]({path}#L{line})"

    return LINK.sub(relink, page.read_text()), wrong


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing")
    parser.add_argument("pages", nargs="+", type=Path)
    arguments = parser.parse_args()
    failed = False
    for page in arguments.pages:
        text, wrong = relinked(page)
        if not arguments.check:
            page.write_text(text)
            wrong = relinked(page)[1]
        for complaint in wrong:
            print(complaint, file=sys.stderr)
        failed |= bool(wrong)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
