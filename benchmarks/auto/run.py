"""`isthmus bench auto`: auto against plain FSDP and every fixed codec, at several link speeds, in one run.

Ranks are restarted at each link speed, behind the link that they measure. Arms take turns, each round beginning with
another one, so that a drift of the machine affects all alike.
"""

import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from isthmus.benchmarks.auto.arms import RIVALS
from isthmus.benchmarks.auto.config import AutoConfig
from isthmus.benchmarks.common.report import report_head
from isthmus.benchmarks.simulate import SILENCE_MARGIN_S, Network, RankWorld, open_network
from isthmus.benchmarks.training.schedule import UNSHAPED

WORKER_MODULE = "isthmus.benchmarks.auto.worker"
#: Time of auto over that of its best rival, at most.
GOAL = 1.02
_SETUP_TIMEOUT_S = 180
_WARM_UP_STEPS = 2

FIELDS = {
    "median_step_s": "median over rounds of the slowest rank's seconds; the first step of each turn is not timed",
    "over_best": "median_step_s over that of the fastest rival: plain FSDP, or a fixed codec that keeps to the budget",
    "explained": "isthmus.explain() of auto's group after the last step, on rank 0",
}


def run_auto(config: AutoConfig, output_dir: Path, console: Console) -> dict[str, Any]:
    """Run the benchmark; returns the whole report as plain values. Raises RankFailure if a rank fails."""
    load_before = os.getloadavg()[0]
    by_link = {}
    for link in config.links:
        with open_network(config.training.nodes) as network:
            if link != UNSHAPED and not network.has_links:
                console.print(f"[yellow]{link} is left out: there is no link to limit ({network.description})")
                continue
            by_link[link] = _run_link(config, network, link, output_dir, console)
    return {
        **report_head(load_before=load_before),
        "arguments": asdict(config),
        "fields": FIELDS,
        "links": by_link,
    }


def turns(config: AutoConfig) -> Iterator[str]:
    """The arms in turn, over all rounds."""
    for index in range(config.rounds):
        turn = index % len(config.arms)
        yield from config.arms[turn:] + config.arms[:turn]


def _run_link(config: AutoConfig, network: Network, link: str, output_dir: Path, console: Console) -> dict[str, Any]:
    if link != UNSHAPED:
        network.shape(link)
    timeout_s = config.training.timeout_s + SILENCE_MARGIN_S
    seconds: dict[str, list[float]] = {arm: [] for arm in config.arms}
    with (
        console.status(f"{link}: starting the ranks") as status,
        RankWorld(network, config.training.ranks_per_node, WORKER_MODULE, output_dir / "logs" / link) as world,
    ):
        setup = {
            "do": "setup",
            "config": config.training.as_json(),
            "arms": config.arms,
            "num_steps": _WARM_UP_STEPS + config.rounds * (1 + config.steps),
        }
        world.request(setup, _SETUP_TIMEOUT_S)
        for arm in config.arms:
            status.update(f"{link}: {arm} warms up")
            world.request({"do": "steps", "arm": arm, "num_steps": _WARM_UP_STEPS}, timeout_s)
        for arm in turns(config):
            status.update(f"{link}: {arm}")
            answers = world.request({"do": "steps", "arm": arm, "num_steps": 1 + config.steps}, timeout_s)
            slowest = [max(step) for step in zip(*(answer["seconds"] for answer in answers), strict=True)]
            seconds[arm] += slowest[1:]
        explained = {
            arm: world.request({"do": "explain", "arm": arm}, timeout_s)[0]["lines"]
            for arm in config.arms
            if arm in RIVALS
        }
    return figures(seconds, explained)


def figures(seconds: dict[str, list[float]], explained: dict[str, list[str]]) -> dict[str, Any]:
    """The figures of one link: of every arm, and of auto against its rivals."""
    medians = {arm: median(values) for arm, values in seconds.items()}
    arms: dict[str, dict[str, Any]] = {
        arm: {"median_step_s": medians[arm], "min_step_s": min(values), "steps_s": values}
        for arm, values in seconds.items()
    }
    for arm in explained:
        rivals = [rival for rival in RIVALS[arm] if rival in medians]
        best = min(rivals, key=medians.__getitem__)
        arms[arm] |= {"best_rival": best, "over_best": medians[arm] / medians[best], "explained": explained[arm]}
    return {"arms": arms}


def print_auto(report: dict[str, Any], console: Console) -> None:
    """Print the table, arms by links, auto against its rivals, and its choices."""
    links = report["links"]
    table = Table(title="Median seconds a step", title_justify="left")
    table.add_column("arm", no_wrap=True)
    for link in links:
        table.add_column(link, justify="right", no_wrap=True)
    for arm in report["arguments"]["arms"]:
        table.add_row(arm, *(f"{measured['arms'][arm]['median_step_s']:.3f}" for measured in links.values()))
    console.print(table)
    for link, measured in links.items():
        for arm, shown in measured["arms"].items():
            if "over_best" not in shown:
                continue
            verdict = "within" if shown["over_best"] <= GOAL else "[red]outside[/red]"
            console.print(
                f"{link}: {arm} takes {shown['over_best']:.3f} of {shown['best_rival']}, the fastest that it could "
                f"have chosen: {verdict} {GOAL:.0%}",
                highlight=False,
            )
            for line in shown["explained"]:
                console.print(line, highlight=False, markup=False)
    console.print(
        "- All ranks share this machine's cores. On CPU nothing overlaps: all of an exchange is seen.", highlight=False
    )
