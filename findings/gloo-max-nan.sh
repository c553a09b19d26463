#!/bin/sh
# Whether a maximum or minimum over Gloo shows a NaN depends on which rank has it and where it lies in the tensor: the NaN
# of rank k survives in the k-th part of the tensor alone, alike on all ranks. Of one element that is rank 0's. torch's
# own max() is NaN wherever there is one. So a job that takes the largest loss, norm or scale of all ranks notices the
# broken one if it is on rank 0, and on no other rank; a sum shows it.
#
# torch 2.15.0 on Linux, Python 3.11, 2026-11-29, printed:
#   MAX of [1], NaN on rank 0: NaN at [0]; on rank 1: NaN at []; on rank 2: NaN at []
#   MIN of [1], NaN on rank 0: NaN at [0]; on rank 1: NaN at []; on rank 2: NaN at []
#   SUM of [1], NaN on rank 0: NaN at [0]; on rank 1: NaN at [0]; on rank 2: NaN at [0]
#   MAX of [6], NaN on rank 0: NaN at [0, 1]; on rank 1: NaN at [2, 3]; on rank 2: NaN at [4, 5]
#   MIN of [6], NaN on rank 0: NaN at [0, 1]; on rank 1: NaN at [2, 3]; on rank 2: NaN at [4, 5]
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/python" -m pip install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" torch==2.15.0 numpy
cat > "$folder/largest.py" <<'END'
import torch
import torch.distributed as dist
import torch.multiprocessing

RANKS = 3
ONE, PARTS = [[0], [], []], [[0, 1], [2, 3], [4, 5]]
EXPECTED = {(1, "MAX"): ONE, (1, "MIN"): ONE, (1, "SUM"): [[0]] * 3, (6, "MAX"): PARTS, (6, "MIN"): PARTS}


def member(rank, port):
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    for (size, operator), expected in EXPECTED.items():
        found = []
        for broken in range(RANKS):
            values = torch.full((size,), float("nan") if rank == broken else 1.0)
            dist.all_reduce(values, getattr(dist.ReduceOp, operator))
            found.append(values.isnan().nonzero().flatten().tolist())
        if rank == 0:
            places = "; ".join(f"on rank {broken}: NaN at {where}" for broken, where in enumerate(found))
            print(f"{operator} of [{size}], NaN {places}", flush=True)
        assert found == expected, "this has changed"
    dist.destroy_process_group()


if __name__ == "__main__":
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    torch.multiprocessing.spawn(member, (store.port,), nprocs=RANKS)
END
"$folder/bin/python" -W ignore "$folder/largest.py"
