"""How well encoding hides behind the exchange: reduce-scatters whole and in segments, over a shaped link."""

from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from isthmus.benchmarks.common.report import report_head
from isthmus.benchmarks.pipeline.config import CODECS, PipelineConfig
from isthmus.benchmarks.simulate import RankWorld, open_network

WORKER_MODULE = "isthmus.benchmarks.pipeline.worker"
_SETUP_TIMEOUT_S = 120
_WARM_UP_ROUNDS = 1
_COLUMNS = {
    "encode, exchange, decode": "median seconds of each phase where nothing overlaps (segments=1), of the slowest rank",
    "whole": "median seconds of a reduce-scatter in one segment, of the slowest rank",
    "segments": "the same in segments, as many as Isthmus chooses; rounds alternate",
    "over max": "segments / max(encode, exchange): 1 would be perfect overlap, with decoding free",
}


def run_pipeline(config: PipelineConfig, log_dir: Path, console: Console) -> dict[str, Any]:
    """Run the benchmark on two nodes of one rank; returns the whole report as plain values.

    Raises RankFailure if a rank fails, and ValueError where this machine cannot shape links.
    """
    rows: list[dict[str, Any]] = []
    with open_network(2) as network:
        if not network.has_links:
            raise ValueError("links cannot be shaped here, and without that nothing is to be seen: it takes root")
        console.print(f"2 nodes x 1 rank on {network.description}, {config.num_bytes} bytes of float32")
        with RankWorld(network, 1, WORKER_MODULE, log_dir) as world:
            groups = {
                f"{codec}/{segments}": {**CODECS[codec], "segments": segments}
                for codec in config.codecs
                for segments in (1, 0)
            }
            setup = {"do": "setup", "groups": groups, "num_elements": config.num_bytes // 4 // 2 * 2}
            world.request({**setup, "timeout_s": config.timeout_s}, _SETUP_TIMEOUT_S)
            for link in config.links:
                network.shape(link)
                rows += [_measure(world, config, link, codec) for codec in config.codecs]
        description = network.description
    return {
        **report_head(),
        "arguments": asdict(config),
        "network": description,
        "columns": _COLUMNS,
        "rows": rows,
    }


def _measure(world: RankWorld, config: PipelineConfig, link: str, codec: str) -> dict[str, Any]:
    calls: dict[int, list[dict[str, float]]] = {1: [], 0: []}
    for _ in range(_WARM_UP_ROUNDS + config.rounds):
        for segments, measured in calls.items():
            answers = world.request({"do": "reduce", "group": f"{codec}/{segments}"}, config.timeout_s)
            measured.append({phase: max(answer[phase] for answer in answers) for phase in answers[0]})
    whole, cut = ({phase: _median(measured, phase) for phase in measured[0]} for measured in calls.values())
    bound_s = max(whole["encode_s"], whole["exchange_s"])
    return {
        "link": link,
        "codec": codec,
        **{phase: whole[phase] for phase in ("encode_s", "exchange_s", "decode_s")},
        "whole_s": whole["seconds"],
        "segments_s": cut["seconds"],
        "over_max": cut["seconds"] / bound_s,
    }


def _median(calls: list[dict[str, float]], phase: str) -> float:
    return median(call[phase] for call in calls[_WARM_UP_ROUNDS:])


def print_pipeline(report: dict[str, Any], console: Console) -> None:
    """Print the table, and what its columns mean."""
    table = Table(title="Seconds of a reduce-scatter", title_justify="left", box=SIMPLE, pad_edge=False)
    for column in ("link", "codec"):
        table.add_column(column, no_wrap=True)
    for column in ("encode", "exchange", "decode", "whole", "segments", "over max"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in report["rows"]:
        seconds = (row[name] for name in ("encode_s", "exchange_s", "decode_s", "whole_s", "segments_s"))
        table.add_row(row["link"], row["codec"], *(f"{value:.4f}" for value in seconds), f"{row['over_max']:.2f}")
    console.print(table)
    for column, meaning in report["columns"].items():
        console.print(f"{column}: {meaning}", highlight=False)
