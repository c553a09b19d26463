"""One rank of the training benchmark: all arms' models side by side, stepped by command of the launcher."""

from isthmus.benchmarks.simulate.serve import Emit, Handler, die_with_launcher, serve

if __name__ == "__main__":
    die_with_launcher()

import math
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from isthmus.benchmarks.common.data import Text, default_files
from isthmus.benchmarks.common.isthmus_group import IsthmusGroup, new_group
from isthmus.benchmarks.common.recorder import Audit, record_collectives
from isthmus.benchmarks.common.stage import Join, Place
from isthmus.benchmarks.simulate.stage import join_simulated
from isthmus.benchmarks.training.config import TrainingConfig
from isthmus.benchmarks.training.trainer import Trainer
from isthmus.plan.strategies import ARMS, Strategy


class Worker:
    """The commands that a rank answers."""

    def __init__(self, join: Join) -> None:
        self._join = join
        self._groups: dict[str, list[IsthmusGroup]] = {}
        self._trainers: dict[str, Trainer] = {}
        self._place = Place()
        self._audit: Audit | None = None

    def setup(self, command: dict[str, Any], emit: Emit) -> dict[str, Any]:
        """Join the world and build every arm."""
        config = TrainingConfig.from_json(command["config"])
        self._place = self._join(command)
        by_node = torch.arange(config.world_size).view(config.nodes, config.ranks_per_node).tolist()
        node_group = new_group("gloo", timedelta(seconds=config.timeout_s), by_node)
        self._audit = Audit(node_group, self._place)
        files = [Path(name) for name in config.text] or default_files()
        text = Text(files, config.context, config.seed)
        for name in config.arms:
            mesh, self._groups[name] = _make_groups(ARMS[name], config, self._place)
            self._trainers[name] = Trainer(mesh, config, text, command["num_steps"], ARMS[name].keeps_on_node)
        train_bytes, held_out_bytes = text.num_bytes
        return {
            "options": {name: groups[0].options for name, groups in self._groups.items() if groups},
            "num_parameters": self._trainers[config.arms[0]].num_parameters,
            "text": {"files": len(files), "train_bytes": train_bytes, "held_out_bytes": held_out_bytes},
        }

    def steps(self, command: dict[str, Any], emit: Emit) -> dict[str, Any]:
        """Train one arm for some steps, from a barrier on; one record a step."""
        dist.barrier()
        records = []
        for _ in range(command["num_steps"]):
            record = self._record_step(command["arm"], command["audit"])
            records.append(record)
            emit({key: record[key] for key in ("loss", "seconds")})
        return {"records": records}

    def validate(self, command: dict[str, Any], emit: Emit) -> dict[str, Any]:
        """Validation loss of one arm."""
        return {"loss": self._trainers[command["arm"]].validate()}

    def _record_step(self, arm: str, audit: bool) -> dict[str, Any]:
        sent_bytes = self._place.sent_bytes
        sent_before = sent_bytes() if sent_bytes else 0
        payload_before = self._payload_bytes(arm)
        start_s = time.perf_counter()
        with record_collectives(self._audit if audit else None) as recording:
            loss = self._trainers[arm].step()
            self._place.synchronize()
        seconds = time.perf_counter() - start_s
        dist.barrier()  # until then this node's last bytes may wait in the queue of its link
        payload = self._payload_bytes(arm)
        payload.subtract(payload_before)
        if not math.isfinite(loss):
            raise RuntimeError(f"loss is {loss}")
        return {
            "loss": loss,
            "seconds": seconds,
            "phases_s": recording.phases_s(seconds, self._place.device),
            "link_sent_bytes": sent_bytes() - sent_before if sent_bytes else None,
            "payload_bytes": payload if self._groups[arm] else None,
            "collectives": recording.as_json() if audit else None,
        }

    def _payload_bytes(self, arm: str) -> Counter[str]:
        """What the arm's groups of Isthmus have sent so far."""
        total: Counter[str] = Counter()
        for group in self._groups[arm]:
            total.update(group.sent_bytes())
        return total


def _make_groups(arm: Strategy, config: TrainingConfig, place: Place) -> tuple[DeviceMesh, list[IsthmusGroup]]:
    """The mesh that an arm's model is sharded over: all ranks, or for HSDP the rails and the nodes. Collective.

    It is what `init_device_mesh` makes, but for options and timeout of its own. The groups are those of the mesh, if
    their backend is Isthmus.
    """
    ranks = torch.arange(config.world_size).view(config.nodes, config.ranks_per_node)
    ranks_of_dimensions = [ranks.T.tolist(), ranks.tolist()] if arm.hybrid_sharded else [None]
    timeout = timedelta(seconds=config.timeout_s)
    isthmus_groups = []
    if arm.options is not None:
        isthmus_groups = [IsthmusGroup(arm.options, timeout, groups) for groups in ranks_of_dimensions]
        groups = [group.group for group in isthmus_groups]
    else:
        groups = [new_group(place.backend, timeout, groups) for groups in ranks_of_dimensions]
    if not arm.hybrid_sharded:
        return DeviceMesh.from_group(groups[0], place.device), isthmus_groups
    names = ("replicate", "shard")
    return DeviceMesh.from_group(groups, place.device, mesh=ranks, mesh_dim_names=names), isthmus_groups


def handlers(join: Join) -> dict[str, Handler]:
    """The commands of a rank that joins the world in this way, by name."""
    worker = Worker(join)
    return {"setup": worker.setup, "steps": worker.steps, "validate": worker.validate}


if __name__ == "__main__":
    serve(handlers(join_simulated))
