"""One rank of the overhead benchmark: Gloo and Isthmus take turns in the same processes."""

from isthmus.benchmarks.simulate.serve import Emit, die_with_launcher, serve

if __name__ == "__main__":
    die_with_launcher()

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from isthmus.benchmarks.common.data import Text, default_files
from isthmus.benchmarks.common.isthmus_group import IsthmusGroup, new_group
from isthmus.benchmarks.overhead.bare_tiers import BareTiers, use_bare_tiers
from isthmus.benchmarks.overhead.config import OverheadConfig
from isthmus.benchmarks.training.trainer import Trainer

_CALL_FIGURES = ("issue_us", "full_us", "thread_cpu_us", "process_cpu_us")
_WARM_UP_BATCHES = 4
_WARM_UP_STEPS = 2
_EXACT = {"codec": "none", "tiers": "two", "units": "*"}
_ELEMENT_BYTES = 4

#: Issues the collective on a group, asynchronously.
Call = Callable[[dist.ProcessGroup], dist.Work]


class Worker:
    """The commands that a rank answers."""

    def setup(self, command: dict[str, Any], emit: Emit) -> dict[str, Any]:
        """Join the world; make the groups whose calls are compared, and those of the tiers by hand."""
        torch.set_num_threads(1)
        self._config = OverheadConfig(**command["config"])
        self._timeout = timedelta(seconds=self._config.timeout_s)
        dist.init_process_group("gloo", timeout=self._timeout)
        by_node = torch.arange(dist.get_world_size()).view(self._config.nodes, self._config.ranks_per_node)
        self._tiers = BareTiers(
            intra=new_group("gloo", self._timeout, by_node.tolist()),
            rail=new_group("gloo", self._timeout, by_node.T.tolist()),
        )
        first_rail = by_node[:, 0].tolist()
        self._takes_part = dist.get_rank() in first_rail
        isthmus_group = IsthmusGroup(_EXACT, self._timeout, [first_rail])
        if self._takes_part:
            self._groups = {"gloo": self._tiers.rail, "isthmus": isthmus_group.group}
        return {}

    def calls(self, command: dict[str, Any], emit: Emit) -> dict[str, Any]:
        """Time one kind of call on both groups, a batch of calls each in turn. Ranks of other rails do nothing."""
        if not self._takes_part:
            return {}
        operation, num_elements = command["operation"], command["num_bytes"] // _ELEMENT_BYTES
        num_wrong = self._num_wrong(operation, num_elements)
        call, _ = _collective(operation, num_elements, self._tiers.rail)
        times: dict[str, dict[str, list[float]]] = {
            name: {figure: [] for figure in _CALL_FIGURES} for name in self._groups
        }
        for index in range(-_WARM_UP_BATCHES, self._config.rounds):
            for name in _in_turn(self._groups, index):
                batch = _time_batch(call, self._groups[name], self._config.batch_calls)
                if index >= 0:
                    for figure, values in batch.items():
                        times[name][figure] += values
        return {**times, "num_wrong": num_wrong}

    def steps(self, command: dict[str, Any], emit: Emit) -> dict[str, Any]:
        """Train with codec none and with the same tiers by hand, a step each in turn."""
        trainers = self._make_trainers()
        records: dict[str, Any] = {name: {"seconds": [], "cpu_s": [], "loss": []} for name in trainers}
        for index in range(-_WARM_UP_STEPS, self._config.steps):
            for name in _in_turn(trainers, index):
                dist.barrier()
                start_s, start_cpu_s = time.perf_counter(), time.process_time()
                loss = trainers[name].step()
                step = {
                    "seconds": time.perf_counter() - start_s,
                    "cpu_s": time.process_time() - start_cpu_s,
                    "loss": loss,
                }
                if index >= 0:
                    for figure, value in step.items():
                        records[name][figure].append(value)
        return records

    def _make_trainers(self) -> dict[str, Trainer]:
        config = self._config.training
        text = Text(default_files(), config.context, config.seed)
        groups = {
            "bare": new_group("gloo", self._timeout),
            "isthmus": IsthmusGroup(_EXACT, self._timeout).group,
        }
        num_steps = _WARM_UP_STEPS + self._config.steps
        trainers = {
            name: Trainer(DeviceMesh.from_group(group, "cpu"), config, text, num_steps)
            for name, group in groups.items()
        }
        use_bare_tiers(trainers["bare"], self._tiers)
        return trainers

    def _num_wrong(self, operation: str, num_elements: int) -> int:
        """1 if a call on Isthmus and one on Gloo leave different results."""
        results = []
        for group in self._groups.values():
            call, result = _collective(operation, num_elements, group)
            call(group).wait()
            results.append(result.clone())
        return int(not torch.equal(*results))


def _in_turn(names: dict[str, Any], index: int) -> list[str]:
    return list(names) if index % 2 else list(names)[::-1]


def _collective(operation: str, num_elements: int, like: dist.ProcessGroup) -> tuple[Call, Tensor]:
    """The call, on a group of the same ranks as `like`, and the tensor that its result is in."""
    rank, size = like.rank(), like.size()
    part_elements = -(-num_elements // size)
    whole = torch.arange(part_elements * size, dtype=torch.float32) + rank
    part = whole[rank * part_elements :][:part_elements].clone()
    other = torch.empty_like(whole)
    root = dist.get_global_rank(like, 0)
    calls: dict[str, tuple[Callable[..., Any], Tensor]] = {
        "all_reduce": (lambda group: dist.all_reduce(whole, dist.ReduceOp.AVG, group, async_op=True), whole),
        "all_gather": (
            lambda group: dist.all_gather_into_tensor(other, part, group, async_op=True),
            other,
        ),
        "reduce_scatter": (
            lambda group: dist.reduce_scatter_tensor(part, whole, group=group, async_op=True),
            part,
        ),
        "broadcast": (lambda group: dist.broadcast(whole, root, group, async_op=True), whole),
        "all_to_all": (lambda group: dist.all_to_all_single(other, whole, group=group, async_op=True), other),
        "barrier": (lambda group: dist.barrier(group, async_op=True), whole),
    }
    return calls[operation]


def _time_batch(call: Call, group: dist.ProcessGroup, num_calls: int) -> dict[str, list[float]]:
    """Times of some calls, each waited for before the next; processor times are the means of the batch."""
    issue_us, full_us = [], []
    start_thread_s, start_process_s = time.thread_time(), time.process_time()
    for _ in range(num_calls):
        start_s = time.perf_counter()
        work = call(group)
        issued_s = time.perf_counter()
        work.wait()
        full_us.append((time.perf_counter() - start_s) * 1e6)
        issue_us.append((issued_s - start_s) * 1e6)
    thread_s, process_s = time.thread_time() - start_thread_s, time.process_time() - start_process_s
    return {
        "issue_us": issue_us,
        "full_us": full_us,
        "thread_cpu_us": [thread_s / num_calls * 1e6],
        "process_cpu_us": [process_s / num_calls * 1e6],
    }


def main() -> None:
    """Serve the launcher until it says "exit"."""
    worker = Worker()
    serve({"setup": worker.setup, "calls": worker.calls, "steps": worker.steps})


if __name__ == "__main__":
    main()
