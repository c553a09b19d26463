#!/bin/sh
# A model that is made on the meta device, sharded by fully_shard and then given its weights (`to_empty()`,
# `reset_parameters()`) has on CPUs the same rows on every rank, if all ranks have the same seed: each
# shard draws its random numbers from the first one on. Of eight rows over four ranks two are different,
# and the matrix has rank 2. It trains, with fewer weights than it seems to have. Torch warns that "DTensor random
# operators may not have complete support on cpu device mesh", and no more. Weights made before sharding are right.
#
# torch 2.15.0 on Linux, Python 3.11, 2026-11-29, printed:
#   made, then sharded: 8 different rows, rank 8
#   sharded, then made: 2 different rows, rank 2
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/python" -m pip install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" torch==2.15.0 numpy
cat > "$folder/weights.py" <<'END'
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.distributed.fsdp import fully_shard

RANKS = 4


def member(rank, port):
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    found = []
    for device, what in (("cpu", "made, then sharded"), ("meta", "sharded, then made")):
        torch.manual_seed(1)
        with torch.device(device):
            layer = torch.nn.Linear(16, 8)
        fully_shard(layer)
        if device == "meta":
            layer.to_empty(device="cpu")
            layer.reset_parameters()
        weight = layer.weight.full_tensor().detach()
        found.append((len(weight.unique(dim=0)), torch.linalg.matrix_rank(weight).item()))
        if rank == 0:
            print(f"{what}: {found[-1][0]} different rows, rank {found[-1][1]}", flush=True)
    assert found == [(8, 8), (2, 2)], "this has changed"
    dist.destroy_process_group()


if __name__ == "__main__":
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    torch.multiprocessing.spawn(member, (store.port,), nprocs=RANKS)
END
"$folder/bin/python" -W ignore "$folder/weights.py"
