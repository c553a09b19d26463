#!/bin/sh
# torch.distributed.checkpoint saves a tensor that is no DTensor once, as if all ranks had the same. Where they do not
# (states of random numbers, error feedback, statistics of batches, counters), what is loaded is one rank's for all ranks.
# That rank is neither rank 0 nor one rank: keys are dealt out to the ranks, so that each writes a part. What a rank saved
# together comes back as a mixture that no rank ever had, and nothing tells. What differs by rank needs a key with the
# rank in it.
#
# torch 2.15.0 on Linux, Python 3.11, 2026-11-29, printed:
#   rank 1 loads mean of rank 0, variance of rank 1, feedback of rank 2, state of rank 3, count of rank 0
#   as all others: True
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/python" -m pip install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" torch==2.15.0 numpy
cat > "$folder/mixture.py" <<'END'
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing

RANKS = 4


def member(rank, port):
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    folder = sys.argv[1]
    saved = {name: torch.full((3,), float(rank)) for name in ("mean", "variance", "feedback", "state")}
    dcp.save(saved | {"count": rank}, checkpoint_id=folder)
    loaded = {name: torch.full((3,), -1.0) for name in saved} | {"count": -1}
    dcp.load(loaded, checkpoint_id=folder)
    sources = {name: int(value[0]) if torch.is_tensor(value) else value for name, value in loaded.items()}
    said = [None] * RANKS
    dist.all_gather_object(said, sources)
    if rank == 0:
        print("rank 1 loads " + ", ".join(f"{name} of rank {source}" for name, source in said[1].items()), flush=True)
        print(f"as all others: {all(other == said[1] for other in said)}", flush=True)
    assert all(other == said[0] for other in said) and len({sources[name] for name in saved}) > 1, "this has changed"
    dist.destroy_process_group()


if __name__ == "__main__":
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    torch.multiprocessing.spawn(member, (store.port,), nprocs=RANKS)
END
"$folder/bin/python" -W ignore "$folder/mixture.py" "$folder/checkpoint"
