#!/bin/sh
# A loss of a DTensor that is sharded along its batch is right where the ranks have as many samples each, and silently
# wrong where they have not: mse_loss, huber_loss and smooth_l1_loss average each rank's mean as if all ranks had the same
# share. `mean()` and l1_loss of the same tensor weigh by samples and are right, so that a check with one of them finds
# nothing. The last batch of an epoch is often such a batch.
#
# torch 2.15.0 on Linux, Python 3.11, 2026-11-29, printed (rows 0, 1, 2, ... on two ranks):
#   4 rows, mse_loss: sharded 3.500, plain 3.500
#   4 rows, square().mean(): sharded 3.500, plain 3.500
#   4 rows, l1_loss: sharded 1.500, plain 1.500
#   4 rows, smooth_l1_loss: sharded 1.125, plain 1.125
#   4 rows, huber_loss: sharded 1.125, plain 1.125
#   3 rows, mse_loss: sharded 2.250, plain 1.667
#   3 rows, square().mean(): sharded 1.667, plain 1.667
#   3 rows, l1_loss: sharded 1.000, plain 1.000
#   3 rows, smooth_l1_loss: sharded 0.875, plain 0.667
#   3 rows, huber_loss: sharded 0.875, plain 0.667
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/python" -m pip install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" torch==2.15.0 numpy
cat > "$folder/loss.py" <<'END'
import torch
import torch.distributed as dist
import torch.multiprocessing
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

RANKS = 2
LOSSES = {
    "mse_loss": lambda values: F.mse_loss(values, values * 0),
    "square().mean()": lambda values: values.square().mean(),
    "l1_loss": lambda values: F.l1_loss(values, values * 0),
    "smooth_l1_loss": lambda values: F.smooth_l1_loss(values, values * 0),
    "huber_loss": lambda values: F.huber_loss(values, values * 0),
}
WRONG = {"mse_loss", "smooth_l1_loss", "huber_loss"}


def member(rank, port):
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))
    for rows in (4, 3):
        values = torch.arange(float(rows))[:, None]
        for name, loss in LOSSES.items():
            right = loss(values).item()
            sharded = loss(distribute_tensor(values, mesh, [Shard(0)])).full_tensor().item()
            if rank == 0:
                print(f"{rows} rows, {name}: sharded {sharded:.3f}, plain {right:.3f}", flush=True)
            assert (abs(sharded - right) > 0.01) == (rows == 3 and name in WRONG), "this has changed"
    dist.destroy_process_group()


if __name__ == "__main__":
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    torch.multiprocessing.spawn(member, (store.port,), nprocs=RANKS)
END
"$folder/bin/python" -W ignore "$folder/loss.py"
