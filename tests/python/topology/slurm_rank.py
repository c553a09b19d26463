"""A task of srun, or a process of torchrun in one: says how Isthmus sees its group, and what was reduced.

Rank 0 prints what all say, as processes that print at the same time get into each other's lines.
"""

import json
import os

import torch
import torch.distributed as dist

import isthmus

os.environ.setdefault("RANK", os.environ["SLURM_PROCID"])
os.environ.setdefault("WORLD_SIZE", os.environ["SLURM_STEP_NUM_TASKS"])
dist.init_process_group("isthmus")
rank, size = dist.get_rank(), dist.get_world_size()
shard = torch.empty(50_000)
with isthmus.unit("x"):
    dist.reduce_scatter_tensor(shard, torch.arange(size * shard.numel(), dtype=torch.float32))
stats = isthmus.stats()
report = {
    "rank": rank,
    "node_map": stats["node_map"],
    "source": stats["node_map_source"],
    "between_nodes_bytes": stats["collectives"]["reduce_scatter"]["inter"]["inter_node_sent_bytes"],
    "is_right": torch.equal(shard, size * torch.arange(rank * 50_000, (rank + 1) * 50_000, dtype=torch.float32)),
}
reports = [{}] * size
dist.all_gather_object(reports, report)
if rank == 0:
    print(json.dumps(reports), flush=True)
dist.barrier()
dist.destroy_process_group()
