#!/bin/sh
# DistributedDataParallel's join() lets ranks have unequal numbers of batches, and divide_by_initial_world_size=False makes
# it divide by the ranks that still have one. With a communication hook that option does nothing, without a word, for the
# hook divides by the size of the group. So do torch's own allreduce_hook, which only averages, and its hooks that
# compress. Near the end of each epoch the gradients are then too small, by half where one of two ranks is left; who adds
# bf16_compress_hook to a training that was tuned with join() changes more than the number of bits.
#
# torch 2.15.0 on Linux, Python 3.11, 2026-11-29, printed (rank r has r + 1 batches, each with the gradient r + 1):
#   no hook, divided by all ranks: together 1.5, rank 1 alone 1.0
#   no hook, divided by those left: together 1.5, rank 1 alone 2.0
#   allreduce_hook, divided by all ranks: together 1.5, rank 1 alone 1.0
#   allreduce_hook, divided by those left: together 1.5, rank 1 alone 1.0
#   bf16_compress_hook, divided by all ranks: together 1.5, rank 1 alone 1.0
#   bf16_compress_hook, divided by those left: together 1.5, rank 1 alone 1.0
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/python" -m pip install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" torch==2.15.0 numpy
cat > "$folder/join.py" <<'END'
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

RANKS = 2


def gradients(hook, by_all):
    model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
    if hook is not None:
        model.register_comm_hook(None, hook)
    seen = []
    with model.join(divide_by_initial_world_size=by_all):
        for _ in range(dist.get_rank() + 1):
            model.zero_grad()
            model(torch.full((1, 1), dist.get_rank() + 1.0)).sum().backward()
            seen.append(model.module.weight.grad.item())
    return seen


def member(rank, port):
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    for hook in (None, default_hooks.allreduce_hook, default_hooks.bf16_compress_hook):
        for by_all in (True, False):
            said = [None] * RANKS
            dist.all_gather_object(said, gradients(hook, by_all))
            (together,), (_, alone) = said
            if rank == 0:
                name = "no hook" if hook is None else hook.__name__
                by = "all ranks" if by_all else "those left"
                print(f"{name}, divided by {by}: together {together}, rank 1 alone {alone}", flush=True)
            right = 1.0 if by_all else 2.0
            assert (together, alone) == (1.5, right if hook is None else 1.0), "this has changed"
    dist.destroy_process_group()


if __name__ == "__main__":
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    torch.multiprocessing.spawn(member, (store.port,), nprocs=RANKS)
END
"$folder/bin/python" -W ignore "$folder/join.py"
