"""One member of the survival benchmark: trains a small GPT, and prints a line of JSON for each step that counts.

Usage: member ARM TIMEOUT_S NUMBER ADDRESS LIGHTHOUSE
"""

import json
import socket
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torchft
from torchft.checkpointing.pg_transport import PGTransport

from isthmus.benchmarks.common.data import Text, default_files
from isthmus.benchmarks.common.model import ByteGpt, loss_of
from isthmus.benchmarks.common.shape import ModelShape
from isthmus.torchft import Manager, ProcessGroupIsthmus
from isthmus.torchft.group import ManagedWork
from isthmus.torchft.manager import for_ddp

SHAPE = ModelShape(width=128, num_layers=2, context=64)
_NUM_SEQUENCES = 4


def join(
    manager_type: type[Any],
    group: Any,
    number: int,
    address: str,
    lighthouse: str,
    timeout: timedelta,
    state_dict: Callable[[], dict[str, Any]],
    load_state_dict: Callable[[dict[str, Any]], object],
) -> Any:
    """The manager of the member with this number, a replica group of one process.

    timeout: of an operation of `group`; a step may take two of them.
    """
    # Under this name nightlies of torchft open a store; simulated nodes have the machine's name in common.
    patch.object(socket, "gethostname", return_value=address).start()
    store = dist.TCPStore(  # type: ignore[attr-defined]  # torch's stubs do not export it
        address, 0, is_master=True, wait_for_workers=False
    )
    manager = manager_type(
        pg=group,
        state_dict=state_dict,
        load_state_dict=load_state_dict,
        min_replica_size=1,
        timeout=2 * timeout,
        quorum_timeout=timedelta(seconds=600),
        quorum_retries=30,
        rank=0,
        world_size=1,
        store_addr=address,
        store_port=store.port,
        lighthouse_addr=lighthouse,
        replica_id=f"member_{number}",
        hostname=address,
        checkpoint_transport=PGTransport(group, 2 * timeout, torch.device("cpu")),
    )
    manager.member_store = store  # which has to live as long
    return manager


# The DDP of torchft 0.2 does not survive a failed all-reduce. These two hand it a result that is not committed: the
# arms compare groups, not this.
class _MendedManager(torchft.Manager):  # type: ignore[misc]  # torchft has no types
    def allreduce(self, *arguments: Any, **keywords: Any) -> Any:
        return for_ddp(super().allreduce(*arguments, **keywords))


class _MendedGloo(torchft.ProcessGroupGloo):  # type: ignore[misc]
    _error: Exception | None = None

    def _create_pg(self, *arguments: Any) -> Any:
        self._error = None
        return super()._create_pg(*arguments)

    def allreduce(self, tensors: list[torch.Tensor], opts: object) -> ManagedWork:
        return ManagedWork(super().allreduce(tensors, opts), tensors, self._note)

    def errored(self) -> Exception | None:
        error: Exception | None = self._error or super().errored()
        return error

    def _note(self, error: Exception) -> None:
        self._error = error


def main() -> None:
    """Train until killed."""
    arm, (timeout_s, number), address, lighthouse = sys.argv[1], map(int, sys.argv[2:4]), *sys.argv[4:6]
    timeout = timedelta(seconds=timeout_s)
    torch.set_num_threads(1)
    torch.manual_seed(1)
    text = Text(default_files()[:50], SHAPE.context, seed=1)
    model = ByteGpt(SHAPE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    group = ProcessGroupIsthmus(timeout) if arm == "isthmus" else _MendedGloo(timeout)
    manager_type = Manager if arm == "isthmus" else _MendedManager
    manager = join(manager_type, group, number, address, lighthouse, timeout, model.state_dict, model.load_state_dict)
    parallel = torchft.DistributedDataParallel(manager, model)
    while True:
        begin_s = time.time()
        manager.start_quorum()
        optimizer.zero_grad()
        batch = text.batch(manager.current_step(), number, _NUM_SEQUENCES)
        loss_of(parallel, batch).backward()  # type: ignore[no-untyped-call]
        if manager.should_commit():
            optimizer.step()
            now_s = time.time()
            step = {"step": manager.current_step(), "members": manager.num_participants(), "at_s": now_s}
            print(json.dumps(step | {"seconds": now_s - begin_s}), flush=True)


if __name__ == "__main__":
    main()
