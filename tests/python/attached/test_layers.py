"""Both ways in work where torch is told to use its other communication layer."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.documents import programs
from support.limits import HANG_S

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(
        importlib.util.find_spec("torch.distributed.config") is None, reason="this torch has one communication layer"
    ),
]
SWITCH = "TORCH_DISTRIBUTED_USE_TORCHCOMMS"


@pytest.mark.parametrize("name", ["attach.py", "by_name.py"])
def test_the_switch_changes_nothing(name: str, tmp_path: Path) -> None:
    program = programs("docs/recipes.md")["attach.py"].replace(
        "import torch.distributed as dist\n",
        "import torch.distributed as dist\n\nassert dist.config.use_torchcomms\n",
        1,
    )
    if name == "by_name.py":
        program = program.replace('init_process_group("gloo")', 'init_process_group("isthmus")')
        program = re.sub(r"^isthmus\.attach.*$", "", program, flags=re.MULTILINE)
    (tmp_path / name).write_text(program)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", name]
    environment = {**os.environ, SWITCH: "1", "ISTHMUS_NODES": "2x1", "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        launch, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert result.returncode == 0, result.stderr
