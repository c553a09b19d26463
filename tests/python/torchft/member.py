"""A member of a job under torchft: trains, writes down what was committed, and comes to harm when told to.

Usage: member FOLDER NUMBER ADDRESS LIGHTHOUSE. It reads FOLDER/harm.NUMBER before each step, a word of `_HARMS`, and
removes it. It writes FOLDER/committed.NUMBER, a line of JSON a step, and ends after the step in which FOLDER/end
appears.
"""

import ctypes
import json
import os
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from isthmus.benchmarks.survival.member import join
from isthmus.torchft import Manager, ProcessGroupIsthmus
from python.torchft.training import (
    OPTIONS,
    TIMEOUT,
    Committed,
    digest,
    loss_of,
    make_model,
    make_optimizer,
    parallel,
)

STEP_PAUSE_S = 0.2  # a step is short, and the replay repeats all of them
PACKETS_TO_OTHERS = 2  # of a reduction among three members


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Group(ProcessGroupIsthmus):
    quorum: tuple[int, int, list[int]]
    dies = False

    def _create_pg(self, store: Any, rank: int, world_size: int) -> Any:
        if self.dies:
            die()
        self.quorum = (self.quorum_number, rank, list(self._global_ranks or []))
        return super()._create_pg(store, rank, world_size)


def arm(event: str, number: int) -> None:
    interposer = ctypes.CDLL(os.environ["LD_PRELOAD"])
    when = ctypes.c_double()
    getattr(interposer, f"interposer_{event}")(ctypes.c_long(number), ctypes.byref(when))
    arm.when = when  # type: ignore[attr-defined]  # lives as long as the process


_HARMS = {
    "idle": die,
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "encode": lambda: arm("kill_at_packet", 1),
    "exchange": lambda: arm("kill_after_bytes", 5000),
    "decode": lambda: arm("kill_at_packet", PACKETS_TO_OTHERS + 1),
}


def main() -> None:
    folder, number, address, lighthouse = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    torch.set_num_threads(1)
    model = make_model()
    optimizer = make_optimizer(model)
    group = Group(timeout=TIMEOUT, **OPTIONS)
    harm_file = folder / f"harm.{number}"

    def load(state: dict[str, Any]) -> None:
        if harm_file.exists() and harm_file.read_text() == "healing":
            harm_file.unlink()
            die()
        model.load_state_dict(state)

    manager = join(Manager, group, number, address, lighthouse, TIMEOUT, model.state_dict, load)
    wrapped = parallel(manager, model)
    with (folder / f"committed.{number}").open("a", buffering=1) as log:
        while not (folder / "end").exists():
            harm = harm_file.read_text() if harm_file.exists() else ""
            if harm in _HARMS:
                harm_file.unlink()
                _HARMS[harm]()
            elif harm == "configure":
                harm_file.unlink()
                group.dies = True
            time.sleep(STEP_PAUSE_S)
            manager.start_quorum()
            optimizer.zero_grad()
            manager.wait_quorum()  # whose step is the data's
            step = manager.current_step()
            loss = loss_of(wrapped, number, step)
            loss.backward()
            if not manager.should_commit():
                continue
            optimizer.step()
            takes_part = manager.is_participating()
            committed = Committed(
                step, *group.quorum, takes_part, manager.num_participants(), loss.item(), digest(model)
            )
            log.write(json.dumps(asdict(committed)) + "\n")
    (folder / f"stats.{number}").write_text(json.dumps(group.stats()["torchft"]))
    os._exit(0)


if __name__ == "__main__":
    main()
