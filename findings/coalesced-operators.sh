#!/bin/sh
# Collectives that are called in torch's coalescing manager (a private name, which Megatron-LM imports all the same) are sent
# off together when its block ends, over Gloo, too. Each call may name its operator, but all take that of the first: of a
# sum, a maximum and an average in one block come three sums, without a word, for all-reduces and for reduce-scatters. It
# does refuse what is not of one kind (an all-reduce beside an all-gather). A block for each operator is right.
#
# torch 2.15.0 on Linux, Python 3.11, 2026-11-29, printed (ranks 0 and 1 have 1.0 and 2.0):
#   all_reduce: SUM, MAX, AVG in one block: 3.0, 3.0, 3.0; alone: 3.0, 2.0, 1.5
#   all_reduce: MAX, SUM, AVG in one block: 2.0, 2.0, 2.0; alone: 2.0, 3.0, 1.5
#   reduce_scatter_tensor: SUM, MAX, AVG in one block: 3.0, 3.0, 3.0; alone: 3.0, 2.0, 1.5
#   reduce_scatter_tensor: MAX, SUM, AVG in one block: 2.0, 2.0, 2.0; alone: 2.0, 3.0, 1.5
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/python" -m pip install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" torch==2.15.0 numpy
cat > "$folder/coalesce.py" <<'END'
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.multiprocessing

RANKS = 2


def reduced(call, operators, block):
    results = []
    with block:
        for operator in operators:
            value = torch.full((1,), dist.get_rank() + 1.0)
            if call == "all_reduce":
                dist.all_reduce(value, getattr(dist.ReduceOp, operator))
            else:
                chunks = value.repeat(RANKS)
                dist.reduce_scatter_tensor(value, chunks, getattr(dist.ReduceOp, operator))
            results.append(value)
    return [result.item() for result in results]


def member(rank, port):
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    for call in ("all_reduce", "reduce_scatter_tensor"):
        for operators in (("SUM", "MAX", "AVG"), ("MAX", "SUM", "AVG")):
            together = reduced(call, operators, dist._coalescing_manager())
            alone = reduced(call, operators, nullcontext())
            if rank == 0:
                print(f"{call}: {', '.join(operators)} in one block: {', '.join(map(str, together))}; "
                      f"alone: {', '.join(map(str, alone))}", flush=True)
            assert together == alone[:1] * 3 and len(set(alone)) == 3, "this has changed"
    dist.destroy_process_group()


if __name__ == "__main__":
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    torch.multiprocessing.spawn(member, (store.port,), nprocs=RANKS)
END
"$folder/bin/python" -W ignore "$folder/coalesce.py"
