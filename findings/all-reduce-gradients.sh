#!/bin/sh
# Torch has two all-reduces that a backward pass goes through, and they disagree on the gradient of a maximum. The
# functional collective gives it to the rank that has the maximum, as everybody else's max() does.
# `torch.distributed.nn.functional.all_reduce` reduces the gradient with the operator of the forward pass: every rank
# gets the largest of the ranks' gradients, and for a product their product, without a word. Sums and averages are right.
#
# Rank r of 0, 1, 2 has the value r + 1 and multiplies the result by r + 1. torch 2.15.0 on Linux, Python 3.11,
# 2026-11-29, printed the gradients of ranks 0, 1, 2:
#   sum: functional collective 6.0, 6.0, 6.0; nn.functional 6.0, 6.0, 6.0; right 6.0, 6.0, 6.0
#   avg: functional collective 2.0, 2.0, 2.0; nn.functional 2.0, 2.0, 2.0; right 2.0, 2.0, 2.0
#   max: functional collective 0.0, 0.0, 6.0; nn.functional 3.0, 3.0, 3.0; right 0.0, 0.0, 6.0
#   product: functional collective refuses; nn.functional 6.0, 6.0, 6.0; right 36.0, 18.0, 12.0
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/python" -m pip install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" torch==2.15.0 numpy
cat > "$folder/gradients.py" <<'END'
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives
import torch.distributed.nn.functional
import torch.multiprocessing

RANKS = 3
PLAIN = {"sum": torch.sum, "avg": torch.mean, "max": torch.max, "product": torch.prod}
WRONG = {"max": "3.0, 3.0, 3.0", "product": "6.0, 6.0, 6.0"}


def functional(value, operator):
    return dist._functional_collectives.all_reduce(value, operator, dist.group.WORLD) * 1


def nn(value, operator):
    return dist.nn.functional.all_reduce(value, getattr(dist.ReduceOp, operator.upper()))


def member(rank, port):
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    for operator, plain in PLAIN.items():
        leaves = torch.arange(1.0, RANKS + 1, requires_grad=True)
        (plain(leaves) * sum(range(1, RANKS + 1))).backward()
        texts = {"right": ", ".join(map(str, leaves.grad.tolist()))}
        for reduce in (functional, nn):
            leaf = torch.tensor([rank + 1.0], requires_grad=True)
            try:
                (reduce(leaf * 1, operator) * (rank + 1)).sum().backward()
                gradients = [None] * RANKS
                dist.all_gather_object(gradients, leaf.grad.item())
                texts[reduce.__name__] = ", ".join(map(str, gradients))
            except RuntimeError:
                texts[reduce.__name__] = "refuses"
        if rank == 0:
            print(f"{operator}: functional collective {texts['functional']}; nn.functional {texts['nn']}; "
                  f"right {texts['right']}", flush=True)
        assert texts["functional"] == ("refuses" if operator == "product" else texts["right"]), "this has changed"
        assert texts["nn"] == WRONG.get(operator, texts["right"]), "this has changed"
    dist.destroy_process_group()


if __name__ == "__main__":
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    torch.multiprocessing.spawn(member, (store.port,), nprocs=RANKS)
END
"$folder/bin/python" -W ignore "$folder/gradients.py"
