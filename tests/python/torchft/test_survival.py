"""Members of a job under torchft are killed, stopped and cut off: training goes on, as if they had left in peace."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import TCPStore

from faults.harness import built_interposer
from isthmus.benchmarks.simulate.network import Network, open_network
from isthmus.benchmarks.survival.job import ElasticJob
from isthmus.torchft import ProcessGroupIsthmus
from python.torchft.members import enter
from python.torchft.training import (
    OPTIONS,
    TIMEOUT,
    Committed,
    Replayed,
    digest,
    loss_of,
    make_model,
    make_optimizer,
    parallel,
)
from support import ranks
from support.limits import HANG_S, scaled
from support.places import ROOT

pytestmark = pytest.mark.processes

NUM_MEMBERS = 3
RATE = "100mbit"


class Harmed(ElasticJob):
    """A job whose members come to harm, and write down what they committed."""

    def __init__(self, network: Network, folder: Path) -> None:
        environment = [f"LD_PRELOAD={built_interposer(folder)}", f"PYTHONPATH={ROOT / 'tests'}"]
        member = ["env", *environment, sys.executable, "-m", "python.torchft.member", str(folder)]
        super().__init__(network, folder, member, heartbeat_timeout_s=scaled(1))
        self.network, self.folder = network, folder

    def harm(self, number: int, kind: str) -> None:
        temporary = self.folder / f"harm.{number}.new"
        temporary.write_text(kind)
        temporary.rename(self.folder / f"harm.{number}")

    def committed(self, number: int) -> list[Committed]:
        path = self.folder / f"committed.{number}"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [Committed(**json.loads(line)) for line in lines]

    def wait(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + HANG_S
        while not condition():
            if time.monotonic() > deadline:
                logs = [path.read_text(errors="replace")[-2000:] for path in sorted(self.folder.glob("*.log"))]
                pytest.fail(f"{what} did not come within {HANG_S} s\n" + "\n---\n".join(logs))
            time.sleep(0.2)

    def wait_for_members(self, *numbers: int, more_steps: int = 2) -> None:
        """Wait until a step is committed in which these and nobody else take part, and some more."""

        def are_there() -> bool:
            recent = [self.committed(number)[-more_steps:] for number in numbers]
            return all(
                len(steps) == more_steps
                and all(step.takes_part and sorted(step.ranks) == sorted(numbers) for step in steps)
                for steps in recent
            )

        self.wait(f"a step of members {numbers}", are_there)

    def end(self) -> None:
        (self.folder / "end").touch()
        for process in self.members.values():
            process.wait(timeout=HANG_S)


def kill(job: Harmed, kind: str, as_it_comes_back: str = "") -> None:
    """Have member 2 die in a phase, and start it again, which takes longer than the others need to go on without it.

    as_it_comes_back: where it dies once more.
    """
    for each in filter(None, (kind, as_it_comes_back)):
        job.harm(2, each)
        if each == as_it_comes_back:
            job.start(2)
        job.members[2].wait(timeout=HANG_S)
    before = len(job.committed(2))
    job.start(2)
    job.wait("member 2", lambda: len(job.committed(2)) > before)


def stop(job: Harmed) -> None:
    job.harm(1, "stop")
    job.wait_for_members(0, 2)
    job.members[1].send_signal(signal.SIGCONT)


def cut(job: Harmed) -> None:
    link = [*job.network.command_prefix(1), "ip", "link", "set", job.network.interface]
    subprocess.run([*link, "down"], check=True)
    job.wait_for_members(0, 2)
    subprocess.run([*link, "up"], check=True)


def lose_two(job: Harmed) -> None:
    for number in (0, 2):
        job.harm(number, "idle")
    for number in (0, 2):
        job.members[number].wait(timeout=HANG_S)
    job.wait_for_members(1)
    for number in (0, 2):
        job.start(number)


def restart_lighthouse(job: Harmed) -> None:
    job.lighthouse.kill()
    job.lighthouse.wait()
    time.sleep(scaled(1))
    job.start_lighthouse()
    before = job.committed(0)[-1].step
    job.wait("a step after the lighthouse is back", lambda: job.committed(0)[-1].step > before + 2)


EVENTS: dict[str, Callable[[Harmed], None]] = {
    "killed with its first packet, and in configure": lambda job: kill(job, "encode", "configure"),
    "killed in the exchange, and in healing": lambda job: kill(job, "exchange", "healing"),
    "killed with its packet of the result": lambda job: kill(job, "decode"),
    "stopped": stop,
    "cut off": cut,
    "two lost": lose_two,
    "lighthouse restarted": restart_lighthouse,
}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harmed]:
    folder = tmp_path_factory.mktemp("job")
    with open_network(NUM_MEMBERS + 1) as network:
        network.shape(RATE)
        with Harmed(network, folder) as job:
            for number in range(NUM_MEMBERS):
                job.start(number)
            yield job


@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)
def test_training_goes_on(job: Harmed, event: Callable[[Harmed], None]) -> None:
    job.wait_for_members(0, 1, 2)
    event(job)
    job.wait_for_members(0, 1, 2)


def test_nothing_is_lost(job: Harmed) -> None:
    """Weights and losses of all members are those of a run without faults that had the same members in each step."""
    job.end()
    assert_repeatable({number: job.committed(number) for number in range(NUM_MEMBERS)})


def assert_repeatable(committed: dict[int, list[Committed]]) -> None:
    by_step: dict[int, dict[int, Committed]] = defaultdict(dict)
    for number, own in committed.items():
        for one in own:
            by_step[one.step][number] = one
    steps = [by_step[step] for step in sorted(by_step)]
    assert sorted(by_step) == list(range(len(steps)))
    for members in steps:
        assert len({one.weights for one in members.values()}) == 1, members
    for found in ranks.run(_replay, NUM_MEMBERS, steps, env={"ISTHMUS_LOG": "error"}):
        for members, (loss, weights) in zip(steps, found["steps"], strict=True):
            own = members.get(found["number"])
            assert weights == next(iter(members.values())).weights, members
            assert own is None or not own.takes_part or loss == own.loss, members


def _replay(number: int, world_size: int, steps: list[dict[int, Committed]]) -> dict[str, object]:
    """Make the recorded steps again, without a fault, with the members that each had."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    store = TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=False)
    address = f"127.0.0.1:{store.port}/replay"
    model = make_model()
    optimizer = make_optimizer(model)
    group = ProcessGroupIsthmus(timeout=10 * TIMEOUT, **OPTIONS)
    manager = Replayed(group)
    wrapped = parallel(manager, model)
    quorum: object = None
    found = []
    for members in steps:
        any_member = next(iter(members.values()))
        is_new = quorum != (quorum := (any_member.quorum_id, any_member.ranks))
        own = members.get(number) or _in_the_quorum(members, number)
        optimizer.zero_grad()
        loss = torch.zeros(())
        if own is not None:
            if is_new:
                if not own.takes_part:  # it heals, and may have died and come back within one quorum: without residuals
                    group.shutdown()
                    manager.group = group = ProcessGroupIsthmus(timeout=10 * TIMEOUT, **OPTIONS)
                where = f"{address}/{own.step}"  # a lighthouse that was restarted counts from 1 again
                enter(group, where, own.rank, own.ranks, own.quorum_id)
            manager.now = own
            loss = loss_of(wrapped, number, own.step)
            loss.backward()
            optimizer.step()
            group.end_step(True, own.step + 1)
        source = min(members)
        for parameter in model.parameters():
            dist.broadcast(parameter.data, source)
        found.append((loss.item(), digest(model)))
    group.shutdown()
    dist.destroy_process_group()
    return {"number": number, "steps": found}


def _in_the_quorum(members: dict[int, Committed], number: int) -> Committed | None:
    """Return the step as a member saw it that was there, but could not write it down."""
    other = next(iter(members.values()))
    if number not in other.ranks:
        return None
    took_part = sum(one.takes_part for one in members.values()) < other.num_participants
    return replace(other, rank=list(other.ranks).index(number), takes_part=took_part)
