"""The overhead benchmark: the time that Isthmus adds to a call of bare Gloo, and to FSDP2 steps over the same tiers."""

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from isthmus.benchmarks.common.report import report_head
from isthmus.benchmarks.overhead.config import OverheadConfig
from isthmus.benchmarks.simulate import SILENCE_MARGIN_S, LoopbackNetwork, RankWorld

WORKER_MODULE = "isthmus.benchmarks.overhead.worker"
#: Those with one tensor in and one out: all_gather_into_tensor, reduce_scatter_tensor, all_to_all_single.
CALLS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "barrier")
CALL_BYTES = (8, 65536)
#: Microseconds that a call may take longer than on bare Gloo, at the median.
CALL_TARGET_US = 20.0
#: How many times as long an FSDP2 step with codec none may take as with the same tiers by hand.
STEP_TARGET = 1.05
#: Losses of both arms may differ by the rounding of their sums.
_LOSS_TOLERANCE = 0.02
_SETUP_TIMEOUT_S = 180

COLUMNS = {
    "gloo": "median microseconds until the call returns its Work (issue), and until that has been waited for (full)",
    "added": "Isthmus less Gloo, call by call: median and quartiles over all ranks. Both take turns in the same "
    "processes, on groups of the same ranks, one a node",
    "cpu": "what is added in processor time of the calling thread, and of the whole process with its helpers: means "
    f"of batches. Waiting does not count, so it shows what is left when other work on this machine blurs the clock. "
    f"The target, {CALL_TARGET_US:.0f} us a call, is held against `full`",
    "#wrong": "calls of Isthmus, over all ranks, whose first result is not bit for bit Gloo's",
    "steps": "seconds of the slowest rank; the ratio is taken step by step, as both take turns",
}


def run_overhead(config: OverheadConfig, log_dir: Path, console: Console) -> dict[str, Any]:
    """Run the benchmark; returns the whole report as plain values. Raises RankFailure if a rank fails."""
    load_before = os.getloadavg()[0]
    network = LoopbackNetwork(config.nodes, "overhead is measured without a link")
    with RankWorld(network, config.ranks_per_node, WORKER_MODULE, log_dir) as world:
        world.request({"do": "setup", "config": asdict(config)}, _SETUP_TIMEOUT_S)
        silence_s = config.timeout_s + SILENCE_MARGIN_S
        calls = []
        for operation in CALLS:
            for num_bytes in (0,) if operation == "barrier" else CALL_BYTES:
                with console.status(f"{operation} {num_bytes or ''}"):
                    command = {"do": "calls", "operation": operation, "num_bytes": num_bytes}
                    answers = [answer for answer in world.request(command, silence_s) if answer]
                calls.append(call_row(operation, num_bytes, answers))
        steps = None
        if config.steps:
            with console.status("FSDP2 steps"):
                steps = step_figures(world.request({"do": "steps"}, _SETUP_TIMEOUT_S + silence_s))
    return {
        **report_head(load_before=load_before),
        "arguments": asdict(config),
        "targets": {"call_us": CALL_TARGET_US, "step_ratio": STEP_TARGET},
        "columns": COLUMNS,
        "calls": calls,
        "all_calls": pooled(calls),
        "steps": steps,
    }


def call_row(operation: str, num_bytes: int, answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """answers: of each rank, by backend and figure, microseconds of every call (cpu figures: of every batch)."""
    row: dict[str, Any] = {"operation": operation, "bytes": num_bytes}
    row["num_wrong"] = sum(answer["num_wrong"] for answer in answers)
    row["added"] = {}
    for figure in ("issue_us", "full_us", "thread_cpu_us", "process_cpu_us"):
        gloo, isthmus = ([us for answer in answers for us in answer[name][figure]] for name in ("gloo", "isthmus"))
        row[figure] = {"gloo": median(gloo), "isthmus": median(isthmus)}
        row["added"][figure] = _spread([ours - theirs for theirs, ours in zip(gloo, isthmus, strict=True)])
    return row


def pooled(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The median over all kinds of calls, equally weighted, and the worst."""
    return {
        figure: {
            "median": median(row["added"][figure]["median"] for row in rows),
            "worst": max(row["added"][figure]["median"] for row in rows),
        }
        for figure in rows[0]["added"]
    }


def step_figures(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """answers: of each rank, by arm, seconds, processor seconds and loss of every step."""
    seconds = {arm: _by_step(answers, arm, "seconds", max) for arm in ("bare", "isthmus")}
    cpu_s = {arm: _by_step(answers, arm, "cpu_s", sum) for arm in ("bare", "isthmus")}
    losses = {arm: _by_step(answers, arm, "loss", sum) for arm in ("bare", "isthmus")}
    differences = [abs(a / b - 1) for a, b in zip(losses["isthmus"], losses["bare"], strict=True)]
    return {
        "bare_s": median(seconds["bare"]),
        "isthmus_s": median(seconds["isthmus"]),
        "ratio": _spread(_ratios(seconds)),
        "cpu_ratio": _spread(_ratios(cpu_s)),
        "largest_loss_difference": max(differences),
        "losses_agree": max(differences) <= _LOSS_TOLERANCE,
        "seconds": seconds,
    }


def _by_step(answers: Sequence[dict[str, Any]], arm: str, figure: str, combine: Any) -> list[float]:
    return [combine(of_ranks) for of_ranks in zip(*(answer[arm][figure] for answer in answers), strict=True)]


def _ratios(by_arm: dict[str, list[float]]) -> list[float]:
    return [ours / theirs for theirs, ours in zip(by_arm["bare"], by_arm["isthmus"], strict=True)]


def _spread(values: Sequence[float]) -> dict[str, float]:
    low, middle, high = quantiles(values, n=4, method="inclusive")
    return {"median": middle, "low_quartile": low, "high_quartile": high}


def is_correct(report: dict[str, Any]) -> bool:
    """Whether every result was right; says nothing of times."""
    steps = report["steps"]
    return sum(row["num_wrong"] for row in report["calls"]) == 0 and (steps is None or steps["losses_agree"])


def print_overhead(report: dict[str, Any], console: Console) -> None:
    """Print the calls, the steps, how both stand to their targets, and what the columns mean."""
    console.print(_call_table(report["calls"]))
    for line in verdicts(report):
        console.print(line, highlight=False)
    for column, meaning in report["columns"].items():
        console.print(f"{column}: {meaning}", highlight=False)


def verdicts(report: dict[str, Any]) -> list[str]:
    """One sentence for each target: the figure, the target, met or missed."""
    added = report["all_calls"]["full_us"]
    worst = max(report["calls"], key=lambda row: float(row["added"]["full_us"]["median"]))
    lines = [
        f"calls: {added['median']:+.1f} us at the median of all kinds, {added['worst']:+.1f} us the worst "
        f"({_name(worst)}); target +{CALL_TARGET_US:.0f} us: {_verdict(added['median'] <= CALL_TARGET_US)} at the "
        f"median, {_verdict(added['worst'] <= CALL_TARGET_US)} by the worst. Processor time of the calling thread: "
        f"{report['all_calls']['thread_cpu_us']['median']:+.1f} us",
    ]
    if steps := report["steps"]:
        ratio = steps["ratio"]
        lines.append(
            f"steps: {steps['isthmus_s']:.3f} s with codec none, {steps['bare_s']:.3f} s with the same tiers by hand: "
            f"{ratio['median']:.3f} ({ratio['low_quartile']:.3f} to {ratio['high_quartile']:.3f}) times; target "
            f"{STEP_TARGET} times: {_verdict(ratio['median'] <= STEP_TARGET)}. Processor time: "
            f"{steps['cpu_ratio']['median']:.3f} times. Losses differ by {steps['largest_loss_difference']:.1e} at most"
        )
    return lines


def _verdict(met: bool) -> str:
    return "[green]met[/green]" if met else "[red]missed[/red]"


def _name(row: dict[str, Any]) -> str:
    return f"{row['operation']}, {row['bytes']} bytes" if row["bytes"] else str(row["operation"])


def _call_table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="us a call", title_justify="left", box=SIMPLE, padding=0, pad_edge=False)
    table.add_column("call", no_wrap=True)
    heads = ["bytes", "gloo\nissue", "gloo\nfull", "added\nissue", "added\nfull", "its\nquartiles"]
    for head in [*heads, "cpu\nthread", "cpu\nprocess", "#wrong"]:
        table.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        added = row["added"]
        figures = [f"{row[figure]['gloo']:.0f}" for figure in ("issue_us", "full_us")]
        figures += [f"{added[figure]['median']:+.1f}" for figure in ("issue_us", "full_us")]
        figures += [f"{added['full_us']['low_quartile']:+.0f} {added['full_us']['high_quartile']:+.0f}"]
        figures += [f"{added[figure]['median']:+.1f}" for figure in ("thread_cpu_us", "process_cpu_us")]
        table.add_row(row["operation"], str(row["bytes"] or "-"), *figures, str(row["num_wrong"]))
    return table
