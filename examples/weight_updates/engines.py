"""A trainer and two kinds of engine: one takes whole tensors, the other patches its weights where they are.

    python examples/weight_updates/engines.py

The third update is damaged on its way, and the fourth is lost: neither engine changes anything, and both say why.
"""

from collections.abc import Iterator

import torch
from torch import nn

import isthmus
from isthmus import weights

DAMAGED, LOST = 3, 4


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Embedding(256, 64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256)).bfloat16()


class Whole:
    """Loads whole tensors, as `load_weights` of vLLM or SGLang does. Memory: what changed, once more."""

    def __init__(self) -> None:
        self.model = model()

    def take(self, update: bytes) -> int:
        """Returns the number of elements that were loaded."""
        old = self.model.state_dict()
        new = weights.apply(old, update)
        self.model.load_state_dict(new)
        return sum(tensor.numel() for name, tensor in new.items() if tensor is not old[name])


class Patched:
    """Writes single elements, as engines do that take indices and values. Memory: one tensor."""

    def __init__(self) -> None:
        self.model = model()

    def take(self, update: bytes) -> int:
        """Returns the number of elements that were written."""
        held, written = self.model.state_dict(), 0
        for name, indices, values in weights.changes(held, update):
            assert name is not None
            held[name].view(-1)[indices] = values
            written += len(indices)
        return written


def trained(trainer: nn.Module) -> Iterator[dict[str, torch.Tensor]]:
    """Yields the weights after each step."""
    optimizer = torch.optim.SGD(trainer.parameters(), lr=1e-2)
    while True:
        batch = torch.randint(256, (32,))
        nn.functional.cross_entropy(trainer(batch), batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        yield {name: tensor.clone() for name, tensor in trainer.state_dict().items()}


def main() -> None:
    engines = Whole(), Patched()
    trainer = model()
    steps = trained(trainer)
    held = {name: tensor.clone() for name, tensor in trainer.state_dict().items()}  # what all engines have
    for number in range(1, 7):
        new = next(steps)
        update = weights.encode(held, new)
        if number == LOST:
            held = new  # as if it had arrived
            continue
        arrived = bytearray(update)
        arrived[len(update) // 2] ^= number == DAMAGED
        for engine in engines:
            before = {name: tensor.clone() for name, tensor in engine.model.state_dict().items()}
            try:
                print(f"{number}, {type(engine).__name__}: {len(update)} bytes, {engine.take(arrived)} elements")
            except isthmus.PacketError as error:  # damaged: the same bytes again
                print(f"{number}, {type(engine).__name__}: {error}")
                assert same(engine.model.state_dict(), before)
                engine.take(update)
            except isthmus.Error as error:  # an update is missing: everything
                print(f"{number}, {type(engine).__name__}: {error}")
                assert same(engine.model.state_dict(), before)
                engine.model.load_state_dict(new)
            assert same(engine.model.state_dict(), new)
        held = new


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(left[name].view(torch.int16), right[name].view(torch.int16)) for name in left)


if __name__ == "__main__":
    main()
