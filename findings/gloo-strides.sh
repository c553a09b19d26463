#!/bin/sh
# Gloo's all_reduce and broadcast take a tensor that is dense but not contiguous (channels_last, transposed), and work on
# its elements in the order in which they lie in memory. They do not compare strides, and recv() of the same group refuses
# such a tensor ("has to be contiguous"). If one rank holds the same weight in another order, a sum adds elements of other
# places, a broadcast shuffles them, and both end without an error, with a result of the right shape. One rank that turned
# its model to channels_last, or loaded its weights in another order than the others, is enough where gradients are
# averaged in a loop. Call `contiguous()` before, or compare strides once.
#
# torch 2.15.0 on Linux, Python 3.11, 2026-11-29, printed (both ranks have 0, 1, 2, 3, 4, 5, rank 1 in channels_last):
#   all_reduce: rank 0 has [0, 3, 6, 4, 7, 10], rank 1 has [0, 4, 3, 7, 6, 10]
#   broadcast of rank 0's: rank 0 has [0, 1, 2, 3, 4, 5], rank 1 has [0, 3, 1, 4, 2, 5]
#   contiguous, all_reduce: rank 0 has [0, 2, 4, 6, 8, 10], rank 1 has [0, 2, 4, 6, 8, 10]
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/python" -m pip install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" torch==2.15.0 numpy
cat > "$folder/strides.py" <<'END'
import torch
import torch.distributed as dist
import torch.multiprocessing

RANKS = 2
ORDER, SHUFFLED = [0, 1, 2, 3, 4, 5], [0, 3, 1, 4, 2, 5]
EXPECTED = {
    "all_reduce": [[0, 3, 6, 4, 7, 10], [0, 4, 3, 7, 6, 10]],
    "broadcast of rank 0's": [ORDER, SHUFFLED],
    "contiguous, all_reduce": [[0, 2, 4, 6, 8, 10]] * RANKS,
}


def exchange(weight, what):
    if "all_reduce" in what:
        dist.all_reduce(weight)
    else:
        dist.broadcast(weight, 0)


def member(rank, port):
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    for what, expected in EXPECTED.items():
        weight = torch.arange(6.0).reshape(1, 3, 1, 2)
        if rank == 1 and "contiguous" not in what:
            weight = weight.to(memory_format=torch.channels_last)
        assert weight.flatten().tolist() == ORDER
        exchange(weight, what)
        said = [None] * RANKS
        dist.all_gather_object(said, weight.flatten().int().tolist())
        if rank == 0:
            print(f"{what}: rank 0 has {said[0]}, rank 1 has {said[1]}", flush=True)
        assert said == expected, "this has changed"
    dist.destroy_process_group()


if __name__ == "__main__":
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    torch.multiprocessing.spawn(member, (store.port,), nprocs=RANKS)
END
"$folder/bin/python" -W ignore "$folder/strides.py"
