#!/bin/sh
# Weights that hardly changed can be coded by zstd against the old ones, given as a dictionary of raw content. That works
# for small tensors. From 2 MiB on it does less and soon nothing, without a word: an update in which nothing changed is as
# large as one without the old weights. Equal places are a tensor apart, beyond the window, which is 2 MiB at level 3. But
# a wider window (`window_log`) alone changes little: the tables of level 3 remember the last MiB of a dictionary alone.
# With `hash_log` and `chain_log` that grow like the tensor an update is small at any size.
#
# zstandard 0.25.0 on Linux, Python 3.11, 2026-11-29, printed:
#   1 MiB, nothing changed: level 3 0.1%, wider window 0.1%, larger tables as well 0.1%
#   2 MiB, nothing changed: level 3 50.1%, wider window 50.1%, larger tables as well 0.1%
#   4 MiB, nothing changed: level 3 100.0%, wider window 75.0%, larger tables as well 0.1%
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/python" -m pip install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" zstandard==0.25.0
cat > "$folder/update.py" <<'END'
import random

import zstandard

OPTIONS = {
    "level 3": {},
    "wider window": {"window_log": 24},
    "larger tables as well": {"window_log": 24, "hash_log": 22, "chain_log": 22},
}
EXPECTED = {1: ["0.1%"] * 3, 2: ["50.1%", "50.1%", "0.1%"], 4: ["100.0%", "75.0%", "0.1%"]}

for mebibytes, expected in EXPECTED.items():
    size = mebibytes << 20
    old = random.Random(1).randbytes(size)  # bits of weights: hardly anything in them repeats
    shares = []
    for options in OPTIONS.values():
        dictionary = zstandard.ZstdCompressionDict(old, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
        parameters = zstandard.ZstdCompressionParameters.from_level(3, **options)
        update = zstandard.ZstdCompressor(dict_data=dictionary, compression_params=parameters).compress(old)
        back = zstandard.ZstdDecompressor(dict_data=dictionary, max_window_size=1 << 24).decompress(update)
        assert back == old
        shares.append(f"{len(update) / size:.1%}")
    texts = ", ".join(f"{name} {share}" for name, share in zip(OPTIONS, shares, strict=True))
    print(f"{mebibytes} MiB, nothing changed: {texts}")
    assert shares == expected, "this has changed"
END
"$folder/bin/python" -W ignore "$folder/update.py"
