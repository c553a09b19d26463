"""What the fuzzer of updates of weights starts from."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def old_weights() -> dict[str, Any]:
    """Weights of three types."""
    import torch

    return {"a": torch.linspace(-1, 1, 40).bfloat16(), "b": torch.arange(5), "c": torch.linspace(0, 1, 20)}


def write(folder: Path, target: str) -> None:
    """Updates of one tensor and of several, as they are and with checksums that are made to fit."""
    from isthmus.weights import encode

    old = old_weights()
    new = {name: tensor + 1 for name, tensor in old.items()}
    updates = [encode(old, new), encode(old["a"], new["a"]), encode(old, old)]
    updates += [encode({name: old[name]}, {name: new[name]}) for name in old]
    for number, update in enumerate(updates):
        for fits in (0, 1, 3):
            (folder / f"{number}-{fits}").write_bytes(bytes([fits]) + update)
