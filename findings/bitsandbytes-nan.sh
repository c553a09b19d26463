#!/bin/sh
# bitsandbytes' blocks of 8 bits and of 4 treat what is no number in opposite ways, on the CPU. With 8 bits
# (`quantize_blockwise`, what its 8-bit optimizers keep) a NaN comes back as an ordinary number, about
# minus the largest of its block, and nothing shows it: a check for NaN behind it never fires. An Inf makes its block infinite,
# itself with the wrong sign. With 4 bits (`quantize_4bit`) a NaN or Inf makes NaN of its block, and -Inf becomes +Inf. A
# guard against broken gradients or moments has to stand before such a code, not behind it.
#
# bitsandbytes 0.50.2, torch 2.15.0 on Linux, Python 3.11, 2026-11-28, printed:
#   8 bits, nan: comes back as a number, NaN in its block of 256: 0, infinite: 0
#   8 bits, inf: comes back as -inf, NaN in its block of 256: 0, infinite: 256
#   8 bits, -inf: comes back as -inf, NaN in its block of 256: 0, infinite: 256
#   4 bits, nan: comes back as nan, NaN in its block of 64: 64, infinite: 0
#   4 bits, inf: comes back as inf, NaN in its block of 64: 63, infinite: 1
#   4 bits, -inf: comes back as inf, NaN in its block of 64: 63, infinite: 1
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/python" -m pip install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" torch==2.15.0 numpy bitsandbytes==0.50.2
cat > "$folder/special.py" <<'END'
import torch
from bitsandbytes import functional

CODES = {
    8: (256, functional.quantize_blockwise, functional.dequantize_blockwise),
    4: (64, functional.quantize_4bit, functional.dequantize_4bit),
}
found = []
for bits, (block, quantize, dequantize) in CODES.items():
    for special in (float("nan"), float("inf"), -float("inf")):
        values = torch.randn(2 * block, generator=torch.Generator().manual_seed(1))
        values[block + 6] = special
        restored = dequantize(*quantize(values, blocksize=block)).flatten()
        here, of_block = restored[block + 6].item(), restored[block:]
        what = "a number" if torch.isfinite(restored[block + 6]) else str(here)
        found.append((what, int(of_block.isnan().sum()), int(of_block.isinf().sum())))
        print(
            f"{bits} bits, {special}: comes back as {what}, NaN in its block of {block}: {found[-1][1]}, "
            f"infinite: {found[-1][2]}"
        )
assert found == [
    ("a number", 0, 0),
    ("-inf", 0, 256),
    ("-inf", 0, 256),
    ("nan", 64, 0),
    ("inf", 63, 1),
    ("inf", 63, 1),
], "this has changed"
END
"$folder/bin/python" -W ignore "$folder/special.py"
