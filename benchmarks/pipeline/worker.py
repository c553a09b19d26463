"""One rank of the pipeline benchmark: times reduce-scatters of one group by command."""

from isthmus.benchmarks.simulate.serve import Emit, die_with_launcher, serve

if __name__ == "__main__":
    die_with_launcher()

import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import isthmus

_PHASES = ("intra_s", "encode_s", "exchange_s", "decode_s")


class Worker:
    """The commands that a rank answers."""

    def __init__(self) -> None:
        self._groups: dict[str, dist.ProcessGroup] = {}

    def setup(self, command: dict[str, Any], emit: Emit) -> dict[str, Any]:
        """Join the world; make a group for each set of options; fill the gradient."""
        torch.set_num_threads(1)
        timeout = timedelta(seconds=command["timeout_s"])
        dist.init_process_group("gloo", timeout=timeout)
        for name, options in command["groups"].items():
            asked = isthmus.Options(min_elements=0, error_interval=0, **options)
            group = dist.new_group(backend="isthmus", timeout=timeout, pg_options=asked)
            assert isinstance(group, dist.ProcessGroup)  # all ranks are in it
            self._groups[name] = group
        generator = torch.Generator().manual_seed(dist.get_rank())
        self._gradient = torch.randn(command["num_elements"], generator=generator)
        self._shard = torch.empty(command["num_elements"] // dist.get_world_size())
        return {}

    def reduce(self, command: dict[str, Any], emit: Emit) -> dict[str, Any]:
        """One reduce-scatter: its seconds from a barrier on, and those of its phases."""
        group = self._groups[command["group"]]
        isthmus.reset_stats(group)
        dist.barrier()
        start_s = time.perf_counter()
        with isthmus.unit("bench"):
            dist.reduce_scatter_tensor(self._shard, self._gradient, group=group)
        seconds = time.perf_counter() - start_s
        counted = isthmus.stats(group)["collectives"]["reduce_scatter"]
        return {"seconds": seconds, **{phase: counted[phase] for phase in _PHASES}}


def main() -> None:
    """Serve the launcher until it says "exit"."""
    worker = Worker()
    serve({"setup": worker.setup, "reduce": worker.reduce})


if __name__ == "__main__":
    main()
