#!/bin/sh
# `get_optimizer_state_dict` of torch.distributed.checkpoint reads an optimizer's state. Where there is none yet, it makes
# one: it takes a step with gradients of zero and a learning rate of zero. The weights stay, but that step is counted, with
# or without a process group. Adam then corrects its moments as if one more gradient had been seen: the first step of a job
# that saves a checkpoint before it begins is 0.74 times as large as without, and its weights are others from then on. Two
# runs of which only one saves at the start are not alike, though saving looks like reading. Where gradients are there
# already, the call leaves the optimizer alone, and what it returns has no state. SGD is not changed.
#
# torch 2.15.0 on Linux, Python 3.11, 2026-11-29, printed (a weight of 1, gradients of 1):
#   AdamW: after one step 0.899, step 1; its state was read before: 0.925, step 2
#   AdamW, read when the gradients are there: 0.899, step 1; read: no state
#   SGD with momentum: after one step 0.900; its state was read before: 0.900
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/python" -m pip install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" torch==2.15.0 numpy
cat > "$folder/early.py" <<'END'
from functools import partial

import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

AdamW = partial(torch.optim.AdamW, lr=0.1)
SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def after_one_step(make, read):
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    optimizer = make(model.parameters())
    state = get_optimizer_state_dict(model, optimizer)["state"] if read == "before" else None
    model(torch.ones(1, 1)).sum().backward()
    if read == "with gradients":
        state = get_optimizer_state_dict(model, optimizer)["state"]
    optimizer.step()
    steps = optimizer.state[model.weight].get("step")
    return f"{model.weight.item():.3f}", steps and int(steps), state


weight, steps, _ = after_one_step(AdamW, "never")
early_weight, early_steps, _ = after_one_step(AdamW, "before")
late_weight, late_steps, state = after_one_step(AdamW, "with gradients")
plain, _, _ = after_one_step(SGD, "never")
early, _, _ = after_one_step(SGD, "before")
print(f"AdamW: after one step {weight}, step {steps}; its state was read before: {early_weight}, step {early_steps}")
what = "some" if state else "no state"
print(f"AdamW, read when the gradients are there: {late_weight}, step {late_steps}; read: {what}")
print(f"SGD with momentum: after one step {plain}; its state was read before: {early}")
assert (steps, early_steps, late_steps) == (1, 2, 1) and not state, "this has changed"
assert weight == late_weight != early_weight and plain == early, "this has changed"
END
"$folder/bin/python" -W ignore "$folder/early.py"
