"""Print what the checkout's environment needs, one requirement a line: to build, to run, to test."""

import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
extras = project["project"]["optional-dependencies"]

requirements = [
    *project["build-system"]["requires"],
    *project["project"]["dependencies"],
    *extras["bench"],
    *(r for r in extras["dev"] if not r.startswith("isthmus")),
    # pip brings these along where they are missing, but not with --no-build-isolation.
    "cmake>=3.24",
    "ninja",
]
print("\n".join(requirements))
