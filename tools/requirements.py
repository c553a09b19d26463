"""Usage: requirements.py newest|oldest|REQUIREMENT [EXTRA...]: print what the checkout's environment needs, one a line.

To build, to run, to test. The torch is the newest or oldest that pyproject.toml allows, or what REQUIREMENT says, such
as torch==2.13.*. EXTRA: further optional dependencies of pyproject.toml.
"""

import re
import sys
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
extras = project["project"]["optional-dependencies"]

supported = next(r for r in project["project"]["dependencies"] if r.startswith("torch"))
oldest, major, above = re.fullmatch(r"torch>=([\d.]+),<(\d+)\.(\d+)", supported).groups()
torch = {"newest": f"torch=={major}.{int(above) - 1}.*", "oldest": f"torch=={oldest}.*"}

requirements = [
    *project["build-system"]["requires"],
    *project["project"]["dependencies"],
    *extras["bench"],
    *extras["torchft"],
    *(r for r in extras["dev"] if not r.startswith("isthmus")),
    *(r for extra in sys.argv[2:] for r in extras[extra]),
    torch.get(sys.argv[1], sys.argv[1]),
    # CUDA's compiler, headers and disassemblers, in the version that torch asks of the same package.
    "cuda-toolkit[nvcc,nvvm,crt,cccl,cuobjdump,nvdisasm]; sys_platform == 'linux'",
    # pip brings these along where they are missing, but not with --no-build-isolation.
    "cmake>=3.24",
    "ninja",
]
print("\n".join(requirements))
