"""Real text for the training benchmark, and the same batches for every arm."""

import sysconfig
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

# The last 1/20 of every file is held out for validation.
_HELD_OUT = 20
_STEPS_BEFORE_VALIDATION = 1 << 40


def default_files() -> list[Path]:
    """The source files of the running Python's standard library, without its tests."""
    root = Path(sysconfig.get_path("stdlib"))
    skipped = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
    return sorted(path for path in root.rglob("*.py") if not skipped & set(path.relative_to(root).parts))


class Text:
    """Bytes for training and bytes held out from it. Batches depend on seed, step and rank alone.

    Raises ValueError if a part of the text is shorter than one sequence.
    """

    def __init__(self, files: Sequence[Path], context: int, seed: int) -> None:
        train, held_out = bytearray(), bytearray()
        for path in files:
            content = path.read_bytes()
            cut = len(content) - len(content) // _HELD_OUT
            train += content[:cut]
            held_out += content[cut:]
        for name, part in (("train on", train), ("validate with", held_out)):
            if len(part) <= context:
                raise ValueError(f"only {len(part)} bytes of text to {name}, context is {context}: give more --text")
        self._train = torch.frombuffer(train, dtype=torch.uint8)
        self._held_out = torch.frombuffer(held_out, dtype=torch.uint8)
        self._context = context
        self._seed = seed

    def batch(self, step: int, rank: int, num_sequences: int) -> Tensor:
        """Sequences of context + 1 bytes for one step of one rank."""
        return self._sample(self._train, step, rank, num_sequences)

    def validation_batch(self, rank: int, num_sequences: int) -> Tensor:
        """Held-out sequences of one rank: the same ones in every call."""
        return self._sample(self._held_out, _STEPS_BEFORE_VALIDATION, rank, num_sequences)

    def _sample(self, source: Tensor, step: int, rank: int, num_sequences: int) -> Tensor:
        generator = torch.Generator().manual_seed(self._seed + (step << 8) + rank)
        starts = torch.randint(source.numel() - self._context, (num_sequences, 1), generator=generator)
        return source[starts + torch.arange(self._context + 1)].long()
