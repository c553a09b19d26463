"""On the trainer's side: write what turns the weights of one safetensors file into those of another.

    python send.py OLD.safetensors NEW.safetensors UPDATE

One tensor of each file is in memory at a time, beside the update.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import safe_open

from isthmus import weights


class File(Mapping[str, torch.Tensor]):
    """Tensors of a safetensors file, each read when it is asked for."""

    def __init__(self, path: str) -> None:
        self._file = safe_open(path, framework="pt")
        self._names = list(self._file.keys())

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._file.get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def main() -> None:
    old, new, update = sys.argv[1:]
    content = weights.encode(File(old), File(new))
    Path(update).write_bytes(content)
    print(f"{len(content)} bytes, where {new} has {Path(new).stat().st_size}")


if __name__ == "__main__":
    main()
