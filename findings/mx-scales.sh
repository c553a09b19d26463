#!/bin/sh
# float8_e8m0fnu holds the scales of MX formats: a power of two, neither sign nor zero. Torch casts a negative number to
# the power of two nearest to its magnitude, and zero to 2^-127, without a word; ml_dtypes makes NaN of both. Positive
# numbers are rounded alike, also halfway and below the smallest. So a scale that was computed with a wrong sign is in torch
# a right one, and a block of zeros, whose scale is zero, decodes in torch to zeros, in JAX to NaN.
#
# torch 2.15.0, ml_dtypes 0.6.0 on Linux, Python 3.11, 2026-11-29, printed:
#   -6, -1, 0, 9.99995e-41, 1.4, 1.5, 3, nan as torch's scales: 8, 1, 5.87747e-39, 5.87747e-39, 1, 2, 4, nan
#   as those of ml_dtypes: nan, nan, nan, 5.87747e-39, 1, 2, 4, nan
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/python" -m pip install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" torch==2.15.0 numpy ml_dtypes==0.6.0
cat > "$folder/scales.py" <<'END'
import ml_dtypes
import numpy as np
import torch

VALUES = np.array([-6, -1, 0, 1e-40, 1.4, 1.5, 3, np.nan], np.float32)


def text(values):
    return ", ".join(f"{value:g}" for value in values.tolist())


ours = text(torch.from_numpy(VALUES).to(torch.float8_e8m0fnu).float())
theirs = text(VALUES.astype(ml_dtypes.float8_e8m0fnu).astype(np.float32))
print(f"{text(VALUES)} as torch's scales: {ours}")
print(f"as those of ml_dtypes: {theirs}")
assert ours == "8, 1, 5.87747e-39, 5.87747e-39, 1, 2, 4, nan", "this has changed"
assert theirs == "nan, nan, nan, 5.87747e-39, 1, 2, 4, nan", "this has changed"
END
"$folder/bin/python" -W ignore "$folder/scales.py"
