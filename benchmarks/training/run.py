"""Drives the training benchmark: nodes, ranks, the schedule, progress; gathers the records of every step."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from isthmus.benchmarks.common.isthmus_group import WEIGHT_PACKETS
from isthmus.benchmarks.common.recorder import COMMUNICATION_PHASES, PHASE_OF_KIND
from isthmus.benchmarks.common.stage import Event, Stage, ignore
from isthmus.benchmarks.here.stage import open_stage
from isthmus.benchmarks.simulate import SILENCE_MARGIN_S
from isthmus.benchmarks.training import worker
from isthmus.benchmarks.training.config import TrainingConfig
from isthmus.benchmarks.training.schedule import Segment, schedule, steps_per_arm, unlimited_link

_SETUP_TIMEOUT_S = 180


@dataclass
class TrainingRecords:
    """Raw measurements. steps: by arm, one plain record a step, in order."""

    config: TrainingConfig
    network: str
    links: list[str]
    model: dict[str, Any]
    steps: dict[str, list[dict[str, Any]]]
    val_loss: dict[str, float] = field(default_factory=dict)
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
        if config.links and not links and not config.here:
            console.print(
                "[yellow]Times are unshaped: there is no link to limit. Bytes are what the transports counted."
            )
        run = _Run(config, stage, schedule(config, links))
        with console.status("starting the ranks"):
            model = run.setup()
        records = TrainingRecords(config, stage.description, links, model, run.steps)
        console.print(f"GPT of {model['num_parameters']:,} parameters; {', '.join(config.arms)}")
        run.train(console)
        records.val_loss = run.validate()
    records.load_before = load_before
    records.seconds = time.monotonic() - start_s
    return records


class _Run:
    """One world stepping through one schedule."""

    def __init__(self, config: TrainingConfig, stage: Stage, segments: list[Segment]) -> None:
        self._config = config
        self._stage = stage
        self._segments = segments
        self.steps: dict[str, list[dict[str, Any]]] = {arm: [] for arm in config.arms}

    def setup(self) -> dict[str, Any]:
        """Build all arms; returns rank 0's facts about the model."""
        command = {
            "do": "setup",
            "config": asdict(self._config),
            "timeout_s": self._config.timeout_s,
            "count_link": self._stage.counts_links,
            "num_steps": steps_per_arm(self._segments),
        }
        return self._stage.world.request(command, _SETUP_TIMEOUT_S)[0]

    def train(self, console: Console) -> None:
        """Go through the schedule."""
        own_link = link = unlimited_link(self._config)
        with _progress(console) as progress:
            total = sum(segment.num_steps for segment in self._segments)
            task = progress.add_task("", total=total, shown="")
            for segment in self._segments:
                if segment.link != link:
                    link = segment.link
                    self._shape(link)
                progress.update(task, description=f"{segment.arm} {link}")
                self._run_segment(segment, _show_step(progress, task))
        if link != own_link:
            self._shape(None)

    def validate(self) -> dict[str, float]:
        """Mean validation loss of each arm, over all ranks' sequences."""
        losses = {}
        for arm in self._config.arms:
            answers = self._request({"do": "validate", "arm": arm})
            losses[arm] = fmean(answer["loss"] for answer in answers)
        return losses

    def _shape(self, rate: str | None) -> None:
        assert self._stage.shape is not None
        self._stage.shape(rate)

    def _run_segment(self, segment: Segment, on_event: Callable[[Event], None]) -> None:
        command = {
            "do": "steps",
            "arm": segment.arm,
            "num_steps": segment.num_steps,
            "audit": segment.kind == "audited",
        }
        answers = self._request(command, on_event)
        done = self.steps[segment.arm]
        for records in zip(*(answer["records"] for answer in answers), strict=True):
            head = {"step": len(done), "link": segment.link, "kind": segment.kind}
            done.append(head | merge_ranks(records))

    def _request(self, command: dict[str, Any], on_event: Callable[[Event], None] = ignore) -> list[dict[str, Any]]:
        return self._stage.world.request(command, self._config.timeout_s + SILENCE_MARGIN_S, on_event)


def merge_ranks(records: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    """One record of a step from those of all ranks: the slowest rank's time, mean loss and phases, summed bytes."""
    counted = [record["link_sent_bytes"] for record in records if record["link_sent_bytes"] is not None]
    merged: dict[str, Any] = {
        "loss": fmean(record["loss"] for record in records),
        "seconds": max(record["seconds"] for record in records),
        "phases_s": {phase: fmean(record["phases_s"][phase] for record in records) for phase in records[0]["phases_s"]},
        "link_sent_bytes": sum(counted) if counted else None,
    }
    if records[0]["payload_bytes"]:
        payload = {
            name: sum(record["payload_bytes"][name] for record in records) for name in records[0]["payload_bytes"]
        }
        merged["weight_packet_bytes"] = payload.pop(WEIGHT_PACKETS)
        merged["payload_bytes"] = payload
    if records[0]["collectives"] is not None:
        merged["collectives"] = _audited_collectives([record["collectives"] for record in records])
        if counted:
            merged["audited_link_bytes"] = dict.fromkeys(COMMUNICATION_PHASES, 0)
            for call in merged["collectives"]:
                merged["audited_link_bytes"][PHASE_OF_KIND[call["kind"]]] += call["link_sent_bytes"]
    return merged


def _audited_collectives(collectives_by_rank: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The collectives of an audited step in order, with the bytes of all nodes' links (None: not counted).

    All ranks issue the same ones, in groups of equal size: those within nodes, or along rails, at the same time.
    """
    merged = []
    for calls in zip(*collectives_by_rank, strict=True):
        counted = [call["link_sent_bytes"] for call in calls if call["link_sent_bytes"] is not None]
        facts = {name: calls[0][name] for name in ("kind", "num_elements", "element_bytes")}
        sent = {"link_sent_bytes": sum(counted) if counted else None}
        merged.append(facts | {"num_ranks": len(calls[0]["ranks"])} | sent)
    return merged


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=10),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[shown]}"),
        console=console,
    )


def _show_step(progress: Progress, task: TaskID) -> Callable[[Event], None]:
    """A listener that shows rank 0's events."""

    def show(event: Event) -> None:
        if event["rank"] == 0:
            shown = f"loss {event['loss']:.3f}, {event['seconds']:.2f} s/step"
            progress.update(task, advance=1, shown=shown)

    return show
