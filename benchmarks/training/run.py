"""Drives the training benchmark: nodes, ranks, the schedule, progress; gathers the records of every step."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from isthmus.benchmarks.common.isthmus_group import WEIGHT_PACKETS
from isthmus.benchmarks.common.recorder import COMMUNICATION_PHASES, PHASE_OF_KIND, Collective
from isthmus.benchmarks.common.stage import Stage, sum_of_counts
from isthmus.benchmarks.here.stage import open_stage
from isthmus.benchmarks.simulate.network import parse_link_rate
from isthmus.benchmarks.simulate.ranks import SILENCE_MARGIN_S
from isthmus.benchmarks.training import worker
from isthmus.benchmarks.training.config import TrainingConfig
from isthmus.benchmarks.training.schedule import UNSHAPED, Segment, schedule, steps_per_arm, unlimited_link

_SETUP_TIMEOUT_S = 180
#: What is reduced to see what a link carries: as much as it should take in this time, but not more than that.
_CARRY_S = 0.3
_MOST_CARRIED_BYTES = 1 << 27


@dataclass
class TrainingRecords:
    """Raw measurements. steps: by arm, one plain record a step, in order."""

    config: TrainingConfig
    network: str
    links: list[str]
    num_parameters: int
    steps: dict[str, list[dict[str, Any]]]
    val_loss: dict[str, float] = field(default_factory=dict)
    #: What each node sent over the plain backend while nothing else was done, in bits per second, by link.
    carried: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    #: Average over the last minute before the start: what else the machine was doing.
    load_before: float = 0.0


def run_training(config: TrainingConfig, output_dir: Path, console: Console) -> TrainingRecords:
    """Run the benchmark. Raises RankFailure if a rank fails; no process or namespace outlives the call.

    With `config.here` all ranks of the launcher call it, and all have the records.
    """
    start_s = time.monotonic()
    load_before = os.getloadavg()[0]
    with open_stage(config, "training", worker, output_dir / "logs", console) as (config, stage):
        console.print(f"{config.nodes} nodes x {config.ranks_per_node} ranks on {stage.description}")
        links = list(config.links) if stage.shape else []
        if config.links and not links and config.is_simulated:
            console.print(
                "[yellow]Times are unshaped: there is no link to limit. Bytes are what the transports counted."
            )
        segments = schedule(config, links)
        setup = {"config": config, "counts_links": stage.counts_links, "num_steps": steps_per_arm(segments)}
        with console.status("starting the ranks"):
            num_parameters: int = stage.request("setup", _SETUP_TIMEOUT_S, **setup)[0]
        console.print(f"GPT of {num_parameters:,} parameters; {', '.join(config.arms)}")
        steps, carried = _train(config, stage, segments, console)
        val_loss = {arm: fmean(stage.request("validate", _patience_s(config), arm=arm)) for arm in config.arms}
    seconds = time.monotonic() - start_s
    return TrainingRecords(
        config, stage.description, links, num_parameters, steps, val_loss, carried, seconds, load_before
    )


def _train(
    config: TrainingConfig, stage: Stage, segments: Sequence[Segment], console: Console
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, float]]:
    """Go through the schedule; returns the records of each arm's steps, and what each link carried."""
    steps: dict[str, list[dict[str, Any]]] = {arm: [] for arm in config.arms}
    carried: dict[str, float] = {}
    own_link = link = unlimited_link(config)
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=10), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[shown]}"), console=console) as progress:
        task = progress.add_task("", total=sum(segment.num_steps for segment in segments), shown="")

        def show(event: dict[str, Any]) -> None:
            progress.update(task, advance=1, shown=f"loss {event['loss']:.3f}, {event['seconds']:.2f} s/step")

        for segment in segments:
            if segment.link != link:
                assert stage.shape is not None
                link = segment.link
                stage.shape(link)
            if stage.shape is not None and link not in carried:
                carried[link] = _carry(config, stage, link)
            progress.update(task, description=f"{segment.arm} {link}")
            facts = {"num_steps": segment.num_steps, "audit": segment.kind == "audited"}
            of_ranks = stage.request("steps", _patience_s(config), show, arm=segment.arm, **facts)
            done = steps[segment.arm]
            for records in zip(*of_ranks, strict=True):
                done.append({"step": len(done), "link": link, "kind": segment.kind} | merge_ranks(records))
    if link != own_link:
        assert stage.shape is not None
        stage.shape(None)
    return steps, carried


def _carry(config: TrainingConfig, stage: Stage, link: str) -> float:
    """The bits per second that each node's link carries when ranks do nothing but reduce over the plain backend."""
    asked_bytes = _MOST_CARRIED_BYTES if link == UNSHAPED else int(parse_link_rate(link) * _CARRY_S / 8)
    of_ranks = stage.request("carry", _patience_s(config), num_bytes=min(asked_bytes, _MOST_CARRIED_BYTES))
    seconds, sent_bytes = zip(*of_ranks, strict=True)
    return 8 * (sum_of_counts(sent_bytes) or 0) / config.nodes / float(max(seconds))


def _patience_s(config: TrainingConfig) -> float:
    return config.timeout_s + SILENCE_MARGIN_S


def merge_ranks(records: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    """One record of a step from those of all ranks: the slowest rank's time, mean loss and phases, summed bytes."""
    merged: dict[str, Any] = {
        "loss": fmean(record["loss"] for record in records),
        "seconds": max(record["seconds"] for record in records),
        "phases_s": {phase: fmean(record["phases_s"][phase] for record in records) for phase in records[0]["phases_s"]},
        "link_sent_bytes": sum_of_counts(record["link_sent_bytes"] for record in records),
        "gpu_bytes": max(record["gpu_bytes"] for record in records),
    }
    if records[0]["payload_bytes"]:
        payload = {
            name: sum(record["payload_bytes"][name] for record in records) for name in records[0]["payload_bytes"]
        }
        merged["weight_packet_bytes"] = payload.pop(WEIGHT_PACKETS)
        merged["payload_bytes"] = payload
    if records[0]["collectives"] is not None:
        merged["collectives"] = _audited_collectives([record["collectives"] for record in records])
        if merged["link_sent_bytes"] is not None:
            merged["audited_link_bytes"] = dict.fromkeys(COMMUNICATION_PHASES, 0)
            for call in merged["collectives"]:
                merged["audited_link_bytes"][PHASE_OF_KIND[call["kind"]]] += call["link_sent_bytes"]
    return merged


def _audited_collectives(collectives_by_rank: Sequence[Sequence[Collective]]) -> list[dict[str, Any]]:
    """The collectives of an audited step in order, with the bytes of all nodes' links (None: not counted).

    All ranks issue the same ones, in groups of equal size: those within nodes, or along rails, at the same time.
    """
    return [
        {
            "kind": calls[0].kind,
            "num_elements": calls[0].num_elements,
            "element_bytes": calls[0].element_bytes,
            "num_ranks": len(calls[0].ranks),
            "link_sent_bytes": sum_of_counts(call.link_sent_bytes for call in calls),
        }
        for calls in zip(*collectives_by_rank, strict=True)
    ]
