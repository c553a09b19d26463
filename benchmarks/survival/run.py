"""Kills members of a training under torchft, one after the other, and counts the steps that come all the same."""

import json
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from isthmus.benchmarks.common.options import check_ranges, option
from isthmus.benchmarks.common.report import print_machine
from isthmus.benchmarks.simulate.network import MAX_NODES, open_network, parse_link_rate
from isthmus.benchmarks.survival.job import ElasticJob
from isthmus.plan.ranges import check_names
from isthmus.plan.report import figures_table

_SETTLE_S = 20  # until all members take part for the first time
_HEARTBEAT_TIMEOUT_S = 1.0


ARMS = ("isthmus", "gloo")


@dataclass(frozen=True)
class SurvivalConfig:
    """Arguments of `python -m isthmus.benchmarks.survival`. Raises ValueError naming field, value and range."""

    minutes: int = option(15, "How long each arm trains.")
    kill_every_s: int = option(30, "Seconds between two kills.", name="kill_every")
    members: int = option(3, "Replica groups, 2 to 7, of one process each.")
    link: str = option("50mbit", "Rate of each member's link.")
    timeout_s: int = option(5, "Seconds that a collective may take.", name="timeout")
    arms: tuple[str, ...] = option(ARMS, f"Of {', '.join(ARMS)}.")
    seed: int = option(1, "Of who is killed.")

    def __post_init__(self) -> None:
        parse_link_rate(self.link)
        ranges = {"minutes": (1, 1440), "kill_every_s": (5, 3600), "members": (2, MAX_NODES - 1), "timeout_s": (1, 600)}
        check_ranges(self, ranges)
        check_names("arm", self.arms, ARMS)


@dataclass(frozen=True)
class Survival:
    """What is left of one arm."""

    arm: str
    num_steps: int
    seconds_to_next_step: list[float]  # from each kill to the next committed step
    #: Steps as long as those between kills are, over all time.
    share: float
    step_s: float
    num_ended: int  # members that ended by themselves, and were started again
    sent_bytes_a_step: float | None


def run_survival(config: SurvivalConfig, folder: Path, console: Console) -> list[Survival]:
    """Run all arms, one after the other."""
    found = []
    print_machine(console)
    for arm in config.arms:
        where = folder / arm
        where.mkdir(parents=True, exist_ok=True)
        for log in where.glob("*.log"):
            log.unlink()
        found.append(_run_arm(config, arm, where, console))
    return found


def _run_arm(config: SurvivalConfig, arm: str, folder: Path, console: Console) -> Survival:
    member = [sys.executable, "-m", "isthmus.benchmarks.survival.member", arm, str(config.timeout_s)]
    kills, ended = [], 0
    choose = random.Random(config.seed)
    with open_network(config.members + 1) as network:
        if network.has_links:
            network.shape(config.link)
        with ElasticJob(network, folder, member, _HEARTBEAT_TIMEOUT_S) as job:
            for number in range(config.members):
                job.start(number)
            while min(len(_steps(folder, number)) for number in range(config.members)) < 2:
                time.sleep(0.5)
            time.sleep(_SETTLE_S)
            begin_s = time.time()
            sent_before = network.sent_bytes(0) if network.has_links else 0
            next_kill_s = begin_s + config.kill_every_s
            while time.time() < begin_s + 60 * config.minutes:
                for number, process in job.members.items():
                    if process.poll() is not None:
                        ended += 1
                        job.start(number)
                if time.time() >= next_kill_s:
                    victim = choose.randrange(config.members)
                    kills.append(time.time())
                    job.members[victim].kill()
                    job.members[victim].wait()
                    job.start(victim)
                    next_kill_s += config.kill_every_s
                    console.print(f"{arm}: {len(kills)} kills, {time.time() - begin_s:.0f} s", highlight=False)
                time.sleep(0.1)
            end_s = time.time()
            sent = network.sent_bytes(0) - sent_before if network.has_links else None
    steps = {step["step"]: step for number in range(config.members) for step in _steps(folder, number)}
    counted = [step for step in steps.values() if begin_s <= step["at_s"] <= end_s]
    at_s = sorted(step["at_s"] for step in counted)
    step_s = median(step["seconds"] for step in counted)
    return Survival(
        arm=arm,
        num_steps=len(counted),
        seconds_to_next_step=[next((at for at in at_s if at > kill), end_s) - kill for kill in kills],
        share=min(1.0, len(counted) * step_s / (end_s - begin_s)),
        step_s=step_s,
        num_ended=ended,
        sent_bytes_a_step=None if sent is None else sent / len(counted),
    )


def _steps(folder: Path, number: int) -> list[dict[str, Any]]:
    log = folder / f"member{number}.log"
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return [json.loads(line) for line in lines if line.startswith('{"step"') and line.endswith("}")]


def print_survival(config: SurvivalConfig, found: list[Survival], console: Console) -> None:
    """Print a row for each arm."""
    title = f"{config.members} members behind {config.link}, one killed every {config.kill_every_s} s"
    columns = ["steps", "s a step", "time in steps", "next one after, s: median, most", "kB of member 0 a step"]
    table = figures_table("group", title, [*columns, "ended by itself"])
    for one in found:
        waits = one.seconds_to_next_step or [0.0]
        sent = "not counted" if one.sent_bytes_a_step is None else f"{one.sent_bytes_a_step / 1e3:.0f}"
        table.add_row(
            one.arm,
            str(one.num_steps),
            f"{one.step_s:.2f}",
            f"{100 * one.share:.0f}%",
            f"{median(waits):.1f}, {max(waits):.1f}",
            sent,
            str(one.num_ended),
        )
    console.print(table)
