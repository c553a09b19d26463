#!/bin/sh
# What is too large for float8_e4m3fn is NaN in ml_dtypes (JAX, and numpy with its types) and 448 in torch, also Inf: both
# claim the one format of OCP, which has no Inf. With float8_e5m2, which has one, torch and ml_dtypes agree, and what is
# too large is Inf. So gradients that overflowed are ordinary numbers after a cast of torch to e4m3fn, a check for Inf or
# NaN behind it never fires, and the other fp8 type does fire. The cast beside it, to float8_e4m3fnuz (AMD's), makes NaN
# of the same numbers in torch, too. A reference in numpy for a codec of torch differs in just these places.
#
# torch 2.15.0, ml_dtypes 0.6.0 on Linux, Python 3.11, 2026-11-29, printed:
#   float8_e4m3fn: 464, 465, 60000, inf, -inf are in torch 448, 448, 448, 448, -448, in ml_dtypes 448, nan, nan, nan, nan
#   float8_e4m3fnuz: 464, 465, 60000, inf, -inf are in torch nan, nan, nan, nan, nan, in ml_dtypes nan, nan, nan, nan, nan
#   float8_e5m2: 464, 465, 60000, inf, -inf are in torch 448, 448, 57344, inf, -inf, in ml_dtypes 448, 448, 57344, inf, -inf
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/python" -m pip install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" torch==2.15.0 numpy ml_dtypes==0.6.0
cat > "$folder/overflow.py" <<'END'
import ml_dtypes
import numpy as np
import torch

VALUES = np.array([464, 465, 60000, np.inf, -np.inf], np.float32)
FINITE, ALL_NAN = "448, 448, 57344, inf, -inf", ", ".join(["nan"] * 5)
EXPECTED = {
    "float8_e4m3fn": ("448, 448, 448, 448, -448", "448, nan, nan, nan, nan"),
    "float8_e4m3fnuz": (ALL_NAN, ALL_NAN),
    "float8_e5m2": (FINITE, FINITE),
}


def text(values):
    return ", ".join(f"{value:g}" for value in values.tolist())


for name, expected in EXPECTED.items():
    ours = text(torch.from_numpy(VALUES).to(getattr(torch, name)).float())
    theirs = text(VALUES.astype(getattr(ml_dtypes, name)).astype(np.float32))
    print(f"{name}: {text(VALUES)} are in torch {ours}, in ml_dtypes {theirs}")
    assert (ours, theirs) == expected, "this has changed"
END
"$folder/bin/python" -W ignore "$folder/overflow.py"
