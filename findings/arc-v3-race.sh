#!/bin/sh
# The format arc_v3 of fireworks-delta-compression gives other bytes, and another number of them, for the same two tensors
# in each call: it runs several codes side by side, waits half as long again as the first one took, and keeps the smallest
# of those that are ready then. What a busy core delays is not in the choice, and an update can be twice as large. All
# restore the same bits. But a cache or a comparison by the update's hash never hits, ranks that encode alike do not send
# alike, and a table of its sizes says how busy the machine was. ARC3_CANDIDATE_WAIT_MULTIPLIER=1000 waits for all.
#
# fireworks-delta-compression 0.1.0, torch 2.15.0 on Linux, Python 3.11, two busy cores, 2026-11-28, printed:
#   24 calls: updates of 151619, 286447 bytes
#   24 calls that wait for all: updates of 151619 bytes
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/python" -m pip install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" torch==2.15.0 numpy fireworks-delta-compression==0.1.0
cat > "$folder/update.py" <<'END'
import sys

import torch
from fireworks_delta_compression import delta_compress, delta_decompress

generator = torch.Generator().manual_seed(1)
old = (torch.randn(1000, 1000, generator=generator) * 0.02).bfloat16()
moved = (old.float() * (1 + 0.01 * torch.randn(old.shape, generator=generator))).bfloat16()
new = torch.where(torch.rand(old.shape, generator=generator) < 0.2, moved, old)
sizes = set()
for _ in range(24):
    update, checksum = delta_compress(src=old, dst=new, compression_format="arc_v3")
    sizes.add(update.numel())
    back = delta_decompress(src=old, compressed_diff=update, checksum=checksum, compression_format="arc_v3")
    assert torch.equal(back.view(torch.int16), new.view(torch.int16))
print(f"24 calls{sys.argv[1]}: updates of {', '.join(map(str, sorted(sizes)))} bytes")
END
"$folder/bin/python" -W ignore "$folder/update.py" "" | tee "$folder/each"
ARC3_CANDIDATE_WAIT_MULTIPLIER=1000 "$folder/bin/python" -W ignore "$folder/update.py" " that wait for all" |
  tee "$folder/all"
[ "$(sed 's/.*updates//' "$folder/each")" != "$(sed 's/.*updates//' "$folder/all")" ] || { echo "this has changed"; exit 1; }
! grep -q , "$folder/all" || { echo "this has changed"; exit 1; }
