"""A group beyond the job: its ranks came by a store of their own, as trainers and inference engines meet."""

import os
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import _new_process_group_helper

import isthmus
from python.group.test_groups import node_map, torchrun
from python.model.test_copies import fsdp2_in_two_units, parallel
from support import ranks
from support.checks import finish
from support.limits import OPERATION_S
from support.logs import logged

JOB = 4  # ranks, on two nodes; processes 4 and 5 are beyond it
MEMBERS = [2, 4, 5]  # the first one is not rank 0 of the job
STEPS = 5


def join(rank: int, name: str, backend: str) -> dist.ProcessGroup:
    """Make a group of `MEMBERS` as OpenRLHF, SkyRL, TRL and vLLM do."""
    timeout = timedelta(seconds=OPERATION_S)
    place, port = MEMBERS.index(rank), int(os.environ["OTHER_PORT"])
    store = dist.TCPStore("127.0.0.1", port, None, place == 0, timeout, wait_for_workers=False, multi_tenant=True)
    group, _ = _new_process_group_helper(
        len(MEMBERS), place, [], backend, dist.PrefixStore(name, store), group_name=name, timeout=timeout
    )
    assert isinstance(group, dist.ProcessGroup)
    return group


def results(group: dist.ProcessGroup) -> list[torch.Tensor]:
    own = torch.randn(6000, generator=torch.Generator().manual_seed(group.rank()))
    summed, sent, shard = own.clone(), own.clone(), torch.empty(2000)
    with isthmus.unit("weights"):
        group._reduce_scatter_base(shard, own).wait()
    group.allreduce([summed]).wait()
    group.broadcast(sent, 0).wait()
    return [shard, summed, sent]


def difference_of_copies(mesh: DeviceMesh) -> float:
    """Return how much the ranks' copies of a norm's weights differ after some steps under tensor parallelism."""
    model: Any = fsdp2_in_two_units(parallel(mesh["tp"]), mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(10 * step + mesh["dp"].get_local_rank())
        model(torch.randn(4, 512, generator=generator)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    weights = [torch.empty(512) for _ in range(JOB)]
    dist.all_gather(weights, model.norm.weight.full_tensor().detach())
    return max(float((each - weights[0]).abs().max()) for each in weights)


def train_beside(rank: int, world_size: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if rank < JOB:
        os.environ.update(torchrun(rank, [0, 0, 1, 1]))
        ranks.init()
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    if rank in MEMBERS:
        with logged() as messages:
            both = [results(join(rank, name, name)) for name in ("isthmus", "gloo")]
            other = join(rank, "other", "isthmus")
            part = other.split_group([0, 1, 2], timeout=timedelta(seconds=OPERATION_S), group_name="part")
            with pytest.MonkeyPatch.context() as patch:  # of the job's four ranks
                patch.setenv("ISTHMUS_NODES", "2x2")
                both.append(results(join(rank, "with nodes", "isthmus")))
        assert all(group._get_backend(torch.device("cpu")).beyond_job for group in (other, part))
        alike = [all(torch.equal(one, each[0]) for one in each) for each in zip(*both, strict=True)]
        found = {"messages": messages, "equal": alike}
    if rank < JOB:
        dist.barrier()
        found["difference"] = difference_of_copies(mesh)
        found["nodes"] = [node_map(group) for group in (None, mesh.get_group("dp"), mesh.get_group("tp"))]
        found["exact"] = isthmus.stats(mesh.get_group("dp"))["exact_calls"]
        isthmus.load_state_dict(isthmus.state_dict())  # asks no rank beyond the job
        finish()
    return found


SAID = "group of 3 ranks: a store of its own, beyond the job: everything goes to the world backend"


@pytest.mark.processes
def test_a_group_beyond_the_job_is_exact_and_leaves_the_job_alone() -> None:
    env = {"ISTHMUS_MIN_ELEMENTS": "0", "OTHER_PORT": str(ranks.free_port())}
    found = ranks.run(train_beside, 6, env=env)
    assert [one.get("equal") for one in found] == [None, None, [True] * 3, None, [True] * 3, [True] * 3]
    assert [one.get("messages") for one in found] == [None, None, [f"{SAID}, uncompressed"], None, [], []]
    for one in found[:JOB]:
        assert one["nodes"] == [
            f"{nodes}, in blocks" for nodes in ("2 nodes x 2 ranks", "2 nodes x 1 rank", "1 node x 2 ranks")
        ]
        assert one["exact"] == found[0]["exact"]
        assert one["difference"] == 0
