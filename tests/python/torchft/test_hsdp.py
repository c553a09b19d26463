"""FSDP2 in each replica group and torchft between them: what crosses is compressed, and a group that breaks is left."""

from __future__ import annotations

import os
import signal
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torchft
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torchft.coordination import LighthouseClient, LighthouseServer

from isthmus.torchft import Manager, ProcessGroupIsthmus
from support import ranks
from support.limits import scaled

pytestmark = pytest.mark.processes

RANKS_PER_GROUP = 2
NUM_STEPS = 6
DIES_AT = 3
TIMEOUT = timedelta(seconds=scaled(4))


def test_two_groups() -> None:
    outcomes = ranks.run_any(_train, 4, env={"RUST_LOG": "warn"})
    values = {outcome.rank: outcome.value for outcome in outcomes if outcome.value}
    first = [values[0], values[1]]
    for value in first:
        assert value["steps"] == NUM_STEPS
        assert value["units"] == {"0": "quant", "2": "quant"}
    # Rank 3 died in the step; rank 2 could not commit it alone, and said so.
    assert outcomes[3].exit_code == -signal.SIGKILL
    assert 2 not in values or values[2]["steps"] < NUM_STEPS
    for step in range(DIES_AT):
        losses = {rank: value["losses"][step] for rank, value in values.items()}
        assert len({loss for rank, loss in losses.items() if rank < RANKS_PER_GROUP}) == 2


def _train(rank: int, world_size: int) -> dict[str, Any]:
    group, rank_in_group = divmod(rank, RANKS_PER_GROUP)
    meeting_port = int(os.environ["MASTER_PORT"])
    meeting = dist.TCPStore("127.0.0.1", meeting_port, is_master=rank == 0, wait_for_workers=False)
    if rank == 0:
        lighthouse = LighthouseServer(
            bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=2000, heartbeat_timeout_ms=int(scaled(1000))
        )
        meeting.set("lighthouse", lighthouse.address())
    lighthouse_address = meeting.get("lighthouse").decode()
    if rank_in_group == 0:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        meeting.set(f"store{group}", str(store.port))
    else:
        store = dist.TCPStore("127.0.0.1", int(meeting.get(f"store{group}")), is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank_in_group, world_size=RANKS_PER_GROUP)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 64))
    mesh = init_device_mesh("cpu", (RANKS_PER_GROUP,))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    isthmus_group = ProcessGroupIsthmus(timeout=TIMEOUT, min_elements=0)
    manager = Manager(
        pg=isthmus_group,
        state_dict=lambda: {},
        load_state_dict=lambda state: None,
        min_replica_size=1,
        init_sync=False,
        timeout=TIMEOUT,
        rank=rank_in_group,
        world_size=RANKS_PER_GROUP,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=lighthouse_address,
        replica_id=f"group_{group}",
        hostname="127.0.0.1",
    )
    # The lighthouse waits for each group whose heart beats, so both hearts beat before either group asks for a quorum.
    LighthouseClient(lighthouse_address, TIMEOUT).heartbeat(store.get(torchft.manager.REPLICA_ID_KEY).decode())
    meeting.set(f"beats{group}", "")
    meeting.wait(["beats0", "beats1"])
    replicas = torchft.process_group.ManagedProcessGroup(manager)
    replicas.register("replicas")

    def reduce(gradient: torch.Tensor) -> None:
        dist.all_reduce(gradient, group=replicas, op=dist.ReduceOp.AVG)

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_all_reduce_hook(reduce)
    losses, units = [], {}
    while manager.current_step() < NUM_STEPS:
        step = manager.current_step()
        manager.start_quorum()
        optimizer.zero_grad()
        data = torch.randn(8, 64, generator=torch.Generator().manual_seed(10 * step + rank))
        loss = (model(data) - data.sin()).square().mean()
        if rank == 3 and step == DIES_AT:
            threading.Timer(0, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
            time.sleep(60)
        loss.backward()
        if manager.should_commit():
            optimizer.step()
            losses.append(loss.item())
        if step == 1:
            units = {unit["name"]: unit["codec"] for unit in isthmus_group.stats()["units"]}
    return {"steps": manager.current_step(), "losses": losses, "units": units}
