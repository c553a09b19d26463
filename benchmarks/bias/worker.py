"""One rank of `isthmus bench bias`: reduces gradients that both ranks know, and regresses the part that it owns."""

from isthmus.benchmarks.simulate.serve import Emit, die_with_launcher, serve

if __name__ == "__main__":
    die_with_launcher()

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import isthmus
from isthmus.benchmarks.common.isthmus_group import new_group


class Worker:
    """The commands that a rank answers."""

    def setup(self, command: dict[str, Any], emit: Emit) -> dict[str, Any]:
        """Join the world."""
        torch.set_num_threads(1)
        self._timeout = timedelta(seconds=command["timeout_s"])
        dist.init_process_group("gloo", timeout=self._timeout)
        return {}

    def measure(self, command: dict[str, Any], emit: Emit) -> dict[str, Any]:
        """Sums over this rank's elements, for a regression of the result on its own and the other rank's part."""
        options = isthmus.Options(codec="quant", bits=command["bits"], scale=command["scale"], min_elements=0)
        group = new_group("isthmus", self._timeout, options=options)
        rank = dist.get_rank()
        generator = torch.Generator().manual_seed(1)
        moments, products = torch.zeros(2, 2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
        error = energy = 0.0
        for _ in range(command["num_steps"]):
            gradients = [torch.randn(command["num_elements"], generator=generator) for _ in range(2)]
            result = _reduced(command["collective"], gradients[rank], group)[rank].double()
            own, foreign = (gradients[each].chunk(2)[rank].double() for each in (rank, 1 - rank))
            parts = torch.stack([own, foreign])
            moments += parts @ parts.T
            products += parts @ result
            error += float((result - parts.sum(0)).square().sum())
            energy += float(parts.sum(0).square().sum())
        dist.destroy_process_group(group)
        return {"moments": moments.tolist(), "products": products.tolist(), "error": error, "energy": energy}


def _reduced(collective: str, gradient: torch.Tensor, group: dist.ProcessGroup) -> list[torch.Tensor]:
    """Both ranks' parts of the sum; after a reduce-scatter this rank's own twice."""
    with isthmus.unit("unit"):
        if collective == "all-reduce":
            dist.all_reduce(gradient := gradient.clone(), group=group)
            return list(gradient.chunk(2))
        shard = torch.empty(gradient.numel() // 2)
        dist.reduce_scatter_tensor(shard, gradient, group=group)
        return [shard, shard]


def main() -> None:
    """Serve the launcher until it says "exit"."""
    worker = Worker()
    serve({"setup": worker.setup, "measure": worker.measure})


if __name__ == "__main__":
    main()
