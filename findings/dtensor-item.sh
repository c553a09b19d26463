#!/bin/sh
# The sum or mean of a sharded DTensor is a DTensor that is still to be reduced over the ranks, and `item()` and `float()`
# of it do not do that: they are this rank's own part, another number on each rank, without an error or a warning. A loss,
# norm or count that is logged so is a rank's alone, and ranks that decide by it decide differently. `full_tensor().item()`
# reduces first. What torch's own get_total_norm() returns has been reduced.
#
# torch 2.15.0 on Linux, Python 3.11, 2026-11-29, printed (the values are 1, 2, 3, 4, on two ranks):
#   rank 0: sum().item() 3.0, float(sum()) 3.0, mean().item() 1.5
#   rank 1: sum().item() 7.0, float(sum()) 7.0, mean().item() 3.5
#   full_tensor() of sum 10.0, of mean 2.5
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/python" -m pip install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" torch==2.15.0 numpy
cat > "$folder/item.py" <<'END'
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

RANKS = 2
EXPECTED = [(3.0, 3.0, 1.5), (7.0, 7.0, 3.5)]


def member(rank, port):
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    values = distribute_tensor(torch.arange(1.0, 5.0), init_device_mesh("cpu", (RANKS,)), [Shard(0)])
    total, mean = values.sum(), values.mean()
    said = [None] * RANKS
    dist.all_gather_object(said, (total.item(), float(total), mean.item()))
    added, averaged = total.full_tensor().item(), mean.full_tensor().item()
    if rank == 0:
        for number, (item, float_, of_mean) in enumerate(said):
            print(f"rank {number}: sum().item() {item}, float(sum()) {float_}, mean().item() {of_mean}", flush=True)
        print(f"full_tensor() of sum {added}, of mean {averaged}", flush=True)
    assert (said, added, averaged) == (EXPECTED, 10.0, 2.5), "this has changed"
    dist.destroy_process_group()


if __name__ == "__main__":
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    torch.multiprocessing.spawn(member, (store.port,), nprocs=RANKS)
END
"$folder/bin/python" -W ignore "$folder/item.py"
