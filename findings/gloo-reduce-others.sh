#!/bin/sh
# `dist.reduce` sends a sum to one rank: "only the process with rank dst is going to receive the final result". Over Gloo
# the tensors of all others are overwritten, too, with partial sums that differ by rank and by place. A program that
# reduces its gradients, losses or counters to rank 0 and uses its own afterwards computes with numbers that nobody has
# asked for, and what goes on adding to them counts ranks twice. Reduce a copy, or reset it on every rank.
#
# torch 2.15.0 on Linux, Python 3.11, 2026-11-29, printed:
#   rank 0 had [1, 1, 1, 1, 1, 1], has [111, 111, 111, 111, 111, 111]
#   rank 1 had [10, 10, 10, 10, 10, 10], has [110, 110, 111, 111, 10, 10]
#   rank 2 had [100, 100, 100, 100, 100, 100], has [100, 100, 101, 101, 111, 111]
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/python" -m pip install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" torch==2.15.0 numpy
cat > "$folder/reduce.py" <<'END'
import torch
import torch.distributed as dist
import torch.multiprocessing

RANKS = 3
RESULTS = [[111] * 6, [110, 110, 111, 111, 10, 10], [100, 100, 101, 101, 111, 111]]


def member(rank, port):
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    values = torch.full((6,), 10**rank)
    had = values.tolist()
    dist.reduce(values, 0)
    said = [None] * RANKS
    dist.all_gather_object(said, (had, values.tolist()))
    if rank == 0:
        for number, (before, after) in enumerate(said):
            print(f"rank {number} had {before}, has {after}", flush=True)
    assert values.tolist() == RESULTS[rank], "this has changed"
    dist.destroy_process_group()


if __name__ == "__main__":
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    torch.multiprocessing.spawn(member, (store.port,), nprocs=RANKS)
END
"$folder/bin/python" -W ignore "$folder/reduce.py"
