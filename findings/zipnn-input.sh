#!/bin/sh
# zipnn compresses weights "lossless", and what comes out decompresses to what went in, bit for bit. But the tensor that
# was given to `compress` is not what it was: of bfloat16 and float32 its bytes are rearranged where they lie, in the
# model's own memory, without a word. A trainer that compresses its weights and trains on, trains on other weights;
# compressing them twice gives another result. float16 and float8 stay as they are. Given `bytes`, it changes those, which
# nothing in Python can. Compress a copy.
#
# zipnn 0.5.4, torch 2.15.0 on Linux, Python 3.11, 2026-11-28, printed:
#   bfloat16: decompressed as it was: True, the input is as it was: False
#   float32: decompressed as it was: True, the input is as it was: False
#   float16: decompressed as it was: True, the input is as it was: True
#   float8_e4m3fn: decompressed as it was: True, the input is as it was: True
#   bytes: decompressed as they were: True, the input is as it was: False
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/python" -m pip install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" torch==2.15.0 numpy zipnn==0.5.4
cat > "$folder/compress.py" <<'END'
import torch
from zipnn import ZipNN


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


found = {}
for dtype in (torch.bfloat16, torch.float32, torch.float16, torch.float8_e4m3fn):
    weights = torch.randn(1000, 1003, generator=torch.Generator().manual_seed(1)).to(dtype)
    before = bits(weights)
    packet = ZipNN(input_format="torch").compress(weights)
    restored = bits(ZipNN(input_format="torch").decompress(packet)) == before
    name = str(dtype).removeprefix("torch.")
    found[name] = bits(weights) == before
    print(f"{name}: decompressed as it was: {restored}, the input is as it was: {found[name]}")
given = bits(torch.randn(1001, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16))
before = bytes(bytearray(given))
packet = ZipNN(bytearray_dtype="bfloat16").compress(given)
found["bytes"] = given == before
restored = bytes(ZipNN(bytearray_dtype="bfloat16").decompress(packet)) == before
print(f"bytes: decompressed as they were: {restored}, the input is as it was: {found['bytes']}")
assert [*found.values()] == [False, False, True, True, False], "this has changed"
END
"$folder/bin/python" -W ignore "$folder/compress.py"
