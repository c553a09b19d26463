"""Both ways in work where torch is told to use its other communication layer."""

from __future__ import annotations

import importlib.util
import re

import pytest
import torch.distributed as dist

from support import ranks
from support.documents import programs

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(
        importlib.util.find_spec("torch.distributed.config") is None, reason="this torch has one communication layer"
    ),
]
ATTACH = programs("docs/recipes.md")["attach.py"]
BY_NAME = re.sub(r"^isthmus\.attach.*$", "", ATTACH.replace('"gloo"', '"isthmus"'), flags=re.MULTILINE)


def train(rank: int, world_size: int, program: str) -> None:
    assert dist.config.use_torchcomms
    exec(compile(program, "program.py", "exec"), {"__name__": "__main__"})


def test_the_switch_changes_nothing() -> None:
    with ranks.server_with(TORCH_DISTRIBUTED_USE_TORCHCOMMS="1"):
        for program in (ATTACH, BY_NAME):
            ranks.run(train, 2, program, env={"ISTHMUS_NODES": "2x1"})
