#!/bin/sh
# What torch.distributed.checkpoint raises, also without a process group, is no `Exception`: CheckpointException derives
# from BaseException, as KeyboardInterrupt does. A trainer that wraps loading or saving in `except Exception`, to begin
# anew where there is no usable checkpoint, to try again, or to tell the other ranks, ends instead, and so does a thread
# or a future that catches `Exception`. The error that it was is in `failures`, a dict from ranks to pairs.
#
# torch 2.15.0 on Linux, Python 3.11, 2026-11-29, printed:
#   another shape: except Exception has nothing; CheckpointException, of a ValueError
#   a name that is not there: except Exception has nothing; CheckpointException, of a RuntimeError
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/python" -m pip install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" torch==2.15.0 numpy
cat > "$folder/load.py" <<'END'
import sys

import torch
import torch.distributed.checkpoint as dcp

folder = sys.argv[1]
dcp.save({"weight": torch.ones(4)}, checkpoint_id=folder)
found = []
for what, wanted in (("another shape", {"weight": torch.ones(2)}), ("a name that is not there", {"bias": torch.ones(4)})):
    try:
        dcp.load(wanted, checkpoint_id=folder)
    except Exception as error:
        found.append(f"except Exception has {type(error).__name__}")
    except BaseException as error:
        ((inner, _),) = error.failures.values()
        found.append(f"except Exception has nothing; {type(error).__name__}, of a {type(inner).__name__}")
    print(f"{what}: {found[-1]}")
assert all(text.startswith("except Exception has nothing; CheckpointException") for text in found), "this has changed"
assert len(found) == 2, "this has changed"
END
"$folder/bin/python" -W ignore "$folder/load.py" "$folder/checkpoint"
