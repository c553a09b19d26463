"""The training benchmark at several numbers of nodes: bytes and time of a step over nodes."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from isthmus.benchmarks.common.report import report_head, write_json
from isthmus.benchmarks.scaling.config import ScalingConfig
from isthmus.benchmarks.training.report import build_report
from isthmus.benchmarks.training.run import run_training
from isthmus.plan.report import figures_table

FIELDS = {
    "median_step_s": "median over timed steps of the slowest rank's seconds",
    "node_mb_per_step": "MB a step that the link of one node sends, mean over nodes and timed steps",
    "reduction_node_mb_per_step": "the part of it that reduces gradients, from audited steps",
    "check": "audited steps beside what placement alone predicts",
}


def run_scaling(config: ScalingConfig, output_dir: Path, console: Console) -> dict[str, Any]:
    """Run the training benchmark at each layout; returns the report. Raises RankFailure if a rank fails."""
    reports = {}
    for layout in config.layouts:
        reports[layout] = build_report(run_training(config.at(layout), output_dir / layout, console))
        write_json(reports[layout], output_dir / layout / "report.json")
    return {
        **report_head(),
        "arguments": asdict(config),
        "fields": FIELDS,
        "headline_link": next(iter(reports.values()))["headline_link"],
        "notes": _notes(reports),
        "layouts": {layout: _figures(report) for layout, report in reports.items()},
    }


def _figures(report: dict[str, Any]) -> dict[str, Any]:
    nodes = report["arguments"]["nodes"]
    return {
        name: {
            "median_step_s": arm["median_step_s"],
            "node_mb_per_step": arm["link_bytes_per_step"] / nodes / 1e6,
            "reduction_node_mb_per_step": arm["reduce_scatter_link_bytes_per_step"] / nodes / 1e6,
            "check": arm["check"],
        }
        for name, arm in report["arms"].items()
    }


def _notes(reports: dict[str, dict[str, Any]]) -> list[str]:
    notes = [
        "All ranks of all nodes share this machine's cores: seconds of compute grow with the number of ranks, and "
        "so do those of collectives, which on CPU take compute. On as many machines they would not.",
        "Each rank brings its own sequences, so more ranks train on more data in a step.",
        "Gloo's reduce-scatter is an all-reduce inside: in arm fsdp it sends twice what a ring reduce-scatter would.",
    ]
    for layout, report in reports.items():
        notes += [f"{layout}: {note}" for note in report["notes"] if note.startswith("DISTURBED")]
    return notes


def print_scaling(report: dict[str, Any], console: Console) -> None:
    """Print two tables, arms by layouts, and the notes."""
    console.print(_table(report, f"Median seconds a step, link {report['headline_link']}", _time))
    console.print(_table(report, "MB a step that the link of one node sends (of it gradients)", _bytes))
    for note in report["notes"]:
        console.print(f"- {note}", highlight=False)


def _time(figures: dict[str, Any]) -> str:
    return f"{figures['median_step_s']:.2f}"


def _bytes(figures: dict[str, Any]) -> str:
    mark = "" if figures["check"]["holds"] else " [red]not as predicted[/red]"
    return f"{figures['node_mb_per_step']:.2f} ({figures['reduction_node_mb_per_step']:.2f}){mark}"


def _table(report: dict[str, Any], title: str, cell: Callable[[dict[str, Any]], str]) -> Table:
    table = figures_table("arm", title, list(report["layouts"]))
    for arm in next(iter(report["layouts"].values())):
        table.add_row(arm, *(cell(figures[arm]) for figures in report["layouts"].values()))
    return table
