"""The collectives benchmark, in the manner of nccl-tests: sizes, times, bandwidths, bytes between nodes, #wrong."""

from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from isthmus.benchmarks.collectives import worker
from isthmus.benchmarks.collectives.config import ELEMENT_BYTES, PLAIN, CollectivesConfig, options_of
from isthmus.benchmarks.common.isthmus_group import all_options
from isthmus.benchmarks.common.report import report_head
from isthmus.benchmarks.common.stage import Stage, sum_of_counts
from isthmus.benchmarks.here.stage import open_stage
from isthmus.benchmarks.simulate.ranks import SILENCE_MARGIN_S
from isthmus.plan.report import figures_table

_SETUP_TIMEOUT_S = 120
_HEADS = (
    "size",
    "count",
    "time\nus",
    "of plain\ntime",
    "algbw\nGB/s",
    "busbw\nGB/s",
    "inter-node\nbytes",
    "#wrong",
    "error",
)

_SHARED_CORES = "all ranks share this machine's cores, so a few milliseconds more or less are the scheduler's"

COLUMNS = {
    "size": "bytes of the whole tensor: the input of a reduce-scatter, the output of an all-gather",
    "count": "elements of one rank's part (all-reduce: of the tensor)",
    "time": "median over calls of the slowest rank's time",
    "of plain time": "share of the time of the backend that is none of Isthmus: gloo, on GPUs nccl",
    "algbw": "size / time",
    "busbw": "algbw x (n-1)/n for n ranks (all-reduce: 2(n-1)/n): what every rank must at least send and receive in an "
    "exact collective, per time, so comparable between sizes and numbers of ranks. A lossy codec can exceed the links.",
    "inter-node": "bytes that all nodes' links sent for one call, headers included",
    "#wrong": "elements, over all ranks, that are not what they must be in the first call: exact ones equal the sum "
    "bit for bit; with quant each is within twice the worst error of a reference on the same values; with tagc less is "
    "missing than there was; all ranks have the same result of an all-reduce. flat-tagc reduces to all exactly",
    "error": "L2 distance of the first call's result from the exact one, as a share of its norm. tagc keeps what is "
    "missing for later steps.",
}


def run_collectives(config: CollectivesConfig, log_dir: Path, console: Console) -> dict[str, Any]:
    """Run the benchmark; returns the whole report as plain values. Raises RankFailure if a rank fails.

    With `config.here` all ranks of the launcher call it, and all have the report.
    """
    rows: list[dict[str, Any]] = []
    with open_stage(config, "collectives", worker, log_dir, console) as (config, stage):
        shaped = "here" if config.here else "unshaped"
        if stage.shape and config.link:
            stage.shape(config.link)
            shaped = config.link
        console.print(f"{config.nodes} nodes x {config.ranks_per_node} ranks on {stage.description}, link {shaped}")
        stage.request("setup", _SETUP_TIMEOUT_S, config=config, counts_links=stage.counts_links)
        for operation in config.operations:
            for num_elements in config.element_counts():
                for backend in config.backends:
                    rows.append(_measure(stage, config, operation, num_elements, backend))
    return {
        **report_head(),
        "arguments": asdict(config),
        "network": stage.description,
        "link": shaped,
        "options": {name: all_options(options_of(name)) for name in config.backends if name not in PLAIN},
        "columns": COLUMNS if config.here else COLUMNS | {"time": f"{COLUMNS['time']}; {_SHARED_CORES}"},
        "num_wrong": sum(row["num_wrong"] for row in rows),
        "rows": rows,
    }


def _measure(
    stage: Stage, config: CollectivesConfig, operation: str, num_elements: int, backend: str
) -> dict[str, Any]:
    arguments = {"operation": operation, "num_elements": num_elements, "backend": backend}
    answers = stage.request("measure", config.iterations * config.timeout_s + SILENCE_MARGIN_S, **arguments)
    world_size = len(answers)
    num_bytes = num_elements * ELEMENT_BYTES[config.dtype]
    slowest = [max(calls) for calls in zip(*(answer["seconds"] for answer in answers), strict=True)]
    seconds = median(slowest)
    share = (world_size - 1) / world_size * (2 if operation == "all_reduce" else 1)
    sent_bytes = sum_of_counts(answer["link_sent_bytes"] for answer in answers)
    return {
        "operation": operation,
        "backend": backend,
        "size_bytes": num_bytes,
        "count": num_elements if operation == "all_reduce" else num_elements // world_size,
        "dtype": config.dtype,
        "time_us": seconds * 1e6,
        "times_us": [call * 1e6 for call in slowest],
        "algbw_gb_s": num_bytes / seconds / 1e9,
        "busbw_gb_s": num_bytes / seconds / 1e9 * share,
        "link_bytes": None if sent_bytes is None else sent_bytes / config.iterations,
        "num_wrong": sum(answer["num_wrong"] for answer in answers),
        "error": max(answer["error"] for answer in answers),
    }


def print_collectives(report: dict[str, Any], console: Console) -> None:
    """Print one table an operation, and what its columns mean."""
    for operation in report["arguments"]["operations"]:
        console.print(_table(operation, [row for row in report["rows"] if row["operation"] == operation]))
    for column, meaning in report["columns"].items():
        console.print(f"{column}: {meaning}", highlight=False)
    console.print(f"\n#wrong in all: {report['num_wrong']}")


def _table(operation: str, rows: list[dict[str, Any]]) -> Table:
    title = operation if operation == "all_gather" else f"{operation} of gradients"
    table = figures_table("backend", f"{title}, {rows[0]['dtype']}", _HEADS)
    table.padding, table.pad_edge = 0, False
    plain_us = {row["size_bytes"]: row["time_us"] for row in rows if row["backend"] in PLAIN}
    for row in rows:
        plain = plain_us.get(row["size_bytes"])
        table.add_row(
            row["backend"],
            str(row["size_bytes"]),
            str(row["count"]),
            f"{row['time_us']:.0f}",
            "-" if plain is None else f"{row['time_us'] / plain:.2f}",
            f"{row['algbw_gb_s']:.3f}",
            f"{row['busbw_gb_s']:.3f}",
            "-" if row["link_bytes"] is None else f"{row['link_bytes']:.0f}",
            str(row["num_wrong"]),
            f"{row['error']:.1e}" if row["error"] else "0",
        )
    return table
