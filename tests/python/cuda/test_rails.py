"""The first line that a job logs: what was found of its machines."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from python.cuda.worlds import needs_fake_gpu
from support import fake_gpu
from support.logs import logged
from support.machines import eight_gpus

ORDER = [f"mlx5_{number}" for number in range(8)]
CROSSED = [*ORDER[:3], "mlx5_5", "mlx5_4", "mlx5_3", *ORDER[6:]]


def log_of_rank(rank: int, world_size: int, files: list[str]) -> list[str]:
    os.environ["HWLOC_XMLFILE"] = files[rank // 8]
    torch.cuda.set_device(rank % 8)
    with logged(logging.INFO) as messages:
        dist.init_process_group("isthmus")
        dist.barrier()
        dist.destroy_process_group()
    return messages


@needs_fake_gpu
@pytest.mark.processes
def test_two_nodes_of_eight_gpus_whose_rails_differ(tmp_path: Path) -> None:
    files = [eight_gpus(tmp_path / "0.xml", ORDER), eight_gpus(tmp_path / "1.xml", CROSSED)]
    env = {"FAKE_GPU_COUNT": "8", "ISTHMUS_NODES": "2x8", "ISTHMUS_LOG": "info"}
    messages, *others = fake_gpu.run(log_of_rank, 16, files, env=env)
    assert messages[0] == (
        "group of 16 ranks: 2 nodes x 8 ranks, in blocks, by ISTHMUS_NODES; a node has 8 x NVIDIA A100-SXM4-80GB, NV12 "
        "between all GPUs, 2400 Gbit/s a pair; rails leave by " + ", ".join(f"{name} (speed unknown)" for name in ORDER)
    )
    assert messages[1].startswith("rails differ between nodes: rank 3 leaves by mlx5_3, and rank 11 by mlx5_5: set ")
    assert not any(message.startswith(("group of", "rails differ")) for log in others for message in log)
