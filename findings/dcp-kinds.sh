#!/bin/sh
# torch.distributed.checkpoint refuses to load a tensor of another shape, and loads one of another kind without a word: into
# integers of fewer bits, which wrap around, and floats into integers, also NaN. A tensor for what was saved as a Python
# number (`lr` before it became a tensor, as a compiled or captured optimizer needs) is not filled: its entry in
# the dict is replaced by the number, and whoever holds the tensor goes on with its old value. The opposite, a number for
# what was saved as a tensor, is refused. So "it loads in place or raises" is the wrong guess; compare dtypes first.
#
# torch 2.15.0 on Linux, Python 3.11, 2026-11-29, printed:
#   int64 [5, 1099511627781] into int32: [5, 5]
#   float32 [1.5, 300.0] into int8: [1, 44]
#   float32 [nan] into bool: [True]
#   a number 0.5 into a tensor 0.1: the dict has a float 0.5, the tensor is 0.1
#   a tensor into a number: refused
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/python" -m pip install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" torch==2.15.0 numpy
cat > "$folder/kinds.py" <<'END'
import sys

import torch
import torch.distributed.checkpoint as dcp

folder = sys.argv[1]
CASTS = {
    "steps": (torch.tensor([5, 2**40 + 5]), torch.int32, [5, 5]),
    "weight": (torch.tensor([1.5, 300.0]), torch.int8, [1, 44]),
    "mask": (torch.tensor([float("nan")]), torch.bool, [True]),
}
dcp.save({name: saved for name, (saved, _, _) in CASTS.items()} | {"lr": 0.5}, checkpoint_id=folder)
for name, (saved, dtype, expected) in CASTS.items():
    wanted = torch.zeros(saved.shape, dtype=dtype)
    dcp.load({name: wanted}, checkpoint_id=folder)
    of, to = (str(tensor.dtype).removeprefix("torch.") for tensor in (saved, wanted))
    print(f"{of} {saved.tolist()} into {to}: {wanted.tolist()}")
    assert wanted.tolist() == expected, "this has changed"
lr = torch.tensor(0.1)
state = {"lr": lr}
dcp.load(state, checkpoint_id=folder)
kind = type(state["lr"]).__name__
print(f"a number 0.5 into a tensor 0.1: the dict has a {kind} {state['lr']}, the tensor is {lr.item():.1f}")
assert state == {"lr": 0.5} and kind == "float" and lr == torch.tensor(0.1), "this has changed"
try:
    dcp.load({"steps": 1}, checkpoint_id=folder)
    refused = False
except dcp.api.CheckpointException:
    refused = True
print("a tensor into a number: " + ("refused" if refused else "loaded"))
assert refused, "this has changed"
END
"$folder/bin/python" -W ignore "$folder/kinds.py" "$folder/checkpoint"
