"""On the side that has the old weights: write the new ones to a safetensors file of their own.

    python receive.py OLD.safetensors UPDATE NEW.safetensors

An engine would load what `apply` returns, as in `model.load_state_dict(weights.apply(snapshot, update))`, while it goes
on with the old weights until then.
"""

import sys
from pathlib import Path

from safetensors.torch import load_file, save_file

from isthmus import weights


def main() -> None:
    old, update, new = sys.argv[1:]
    save_file(weights.apply(load_file(old), Path(update).read_bytes()), new)


if __name__ == "__main__":
    main()
