"""Sums up the records of a training benchmark: report.json, tables, and what to set."""

import os
from collections.abc import Callable
from dataclasses import asdict
from statistics import fmean, median
from typing import Any

from rich.console import Console
from rich.table import Table

from isthmus.benchmarks.common.isthmus_group import all_options
from isthmus.benchmarks.common.recorder import COMMUNICATION_PHASES, WHOLE_STEP
from isthmus.benchmarks.common.report import in_words, report_head
from isthmus.benchmarks.simulate.network import link_rate_text, parse_link_rate
from isthmus.benchmarks.training.check import check_arm, print_checks
from isthmus.benchmarks.training.run import TrainingRecords
from isthmus.benchmarks.training.schedule import UNSHAPED, unlimited_link
from isthmus.plan.report import figures_table
from isthmus.plan.strategies import ARMS, Strategy

#: Begins a note that casts doubt on the figures.
DISTURBED = "DISTURBED"
#: Medians of a few steps repeat within this share from run to run.
_EQUAL_TIMES = 0.05
#: Options that say nothing about an arm: the defaults.
_IN_ALL_ARMS = (("tiers", "two"), ("units", "*"))
#: Before and after DDP makes its last buckets: docs/recipes.md.
_EXACT_PASSES_OF_DDP = 3
#: Timed steps of one arm that differ more than this were disturbed.
_CALM_SPREAD = 1.3

FIELDS = {
    "median_step_s": "median over timed steps of the slowest rank's seconds",
    "link_bytes_per_step": "mean over timed steps of what the nodes' links sent, summed over nodes",
    "reduce_scatter_link_bytes_per_step": "the part of it that reduces gradients (hsdp*, ddp*: their all-reduce): its "
    "share of audited steps, in which barriers part the collectives",
    "phases_s": "mean over ranks, median over timed steps (they need not add up to median_step_s); reduce_scatter has "
    "the all-reduce of hsdp* and ddp* in it; waiting for a slower rank is in the collective that waits",
    "check": "audited steps beside what placement alone predicts",
    "gpu_bytes": "peak of what the tensors of the arm hold on a rank's GPU in a step, without CUDA's and NCCL's own",
    "carried_bits_per_s": "what each node sent, by link, while ranks did nothing but reduce over the plain backend",
    "val_loss": "mean cross-entropy in nats a byte on held-out text after the last step",
    "steps": "every step; kind: loss (no limit on the link; with --here these are timed), audited, settling (not "
    "timed), timed",
    "by_link": "the same figures at each link speed; 'unshaped' and 'here' from the steps for the loss",
    "advice": "the arm to take, and its options",
}


def build_report(records: TrainingRecords) -> dict[str, Any]:
    """The whole report as plain values. Figures of an arm are those of the slowest link."""
    own_link = unlimited_link(records.config)
    links = [own_link, *records.links]
    slowest = min(records.links, key=parse_link_rate, default=own_link)
    arms = {name: _arm(name, records, links, slowest) for name in records.config.arms}
    notes = _notes(records, slowest) + _disturbances(arms, records.load_before)
    where = f"Over simulated nodes, link {slowest}: " if records.config.is_simulated else ""
    if records.config.islands:
        where = f"With ISTHMUS_NODES={os.environ.get('ISTHMUS_NODES') or 'islands'}: "
    return {
        **report_head(load_before=records.load_before),
        "seconds": round(records.seconds, 1),
        "arguments": asdict(records.config),
        "model": {"num_parameters": records.num_parameters},
        "network": records.network,
        "links": links,
        "headline_link": slowest,
        "carried_bits_per_s": records.carried,
        "notes": notes,
        "fields": FIELDS,
        "advice": where + advice(arms, records.config.ranks_per_node, notes),
        "arms": arms,
    }


def _arm(name: str, records: TrainingRecords, links: list[str], slowest: str) -> dict[str, Any]:
    steps = records.steps[name]
    timed = [step for step in steps[_warm_up(name, steps) :] if step["kind"] in ("loss", "timed")]
    by_link = {link: _figures([step for step in timed if step["link"] == link]) for link in links}
    audited = [step for step in steps if step["kind"] == "audited"]
    own_options = ARMS[name].options
    options = None if own_options is None else all_options(own_options)
    check = check_arm(records.config, name, options, steps)
    arm = {
        "description": ARMS[name].description,
        **by_link[slowest],
        "val_loss": records.val_loss[name],
        "options": options,
        "gpu_bytes": max(step["gpu_bytes"] for step in steps),
        "check": check,
        "link_bytes_source": "prediction" if check["link_bytes"] is None else "interface",
    }
    if check["link_bytes"] is not None:
        counted = {
            phase: fmean(step["audited_link_bytes"][phase] for step in audited) for phase in COMMUNICATION_PHASES
        }
        # Packets of gradients have one size in all steps; those of weights are as long as the step's changes are, and
        # the audited steps' are longer than others'. So the gradients' bytes are as audited, and weights are the rest.
        gradients = {phase: num_bytes for phase, num_bytes in counted.items() if phase != "all_gather"}
        in_all, of_gradients = arm["link_bytes_per_step"], sum(gradients.values())
        if counted["all_gather"] == 0 or of_gradients > in_all:  # links carry a little more or less in each step
            gradients = {phase: in_all * num_bytes / max(of_gradients, 1) for phase, num_bytes in gradients.items()}
        parts = gradients | {"all_gather": in_all - sum(gradients.values())}
    else:
        parts = {**check["predicted"]["bytes_by_phase"]}
        parts["all_gather"] += check["weight_packet_bytes"]
        arm["link_bytes_per_step"] = sum(parts.values())
    arm |= {f"{phase}_link_bytes_per_step": num_bytes for phase, num_bytes in parts.items()}
    return arm | {"by_link": by_link, "steps": steps}


def _warm_up(name: str, steps: list[dict[str, Any]]) -> int:
    """How many steps are not timed: the first, and of DDP all that may be exact, as far as others are left."""
    num_loss_steps = sum(step["kind"] == "loss" for step in steps)
    return min(_EXACT_PASSES_OF_DDP, num_loss_steps - 1) if ARMS[name].is_ddp else 1


def _figures(steps: list[dict[str, Any]]) -> dict[str, Any]:
    link_bytes = [step["link_sent_bytes"] for step in steps]
    return {
        "median_step_s": median(step["seconds"] for step in steps),
        "min_step_s": min(step["seconds"] for step in steps),
        "max_step_s": max(step["seconds"] for step in steps),
        "num_steps": len(steps),
        "link_bytes_per_step": None if None in link_bytes else fmean(link_bytes),
        "phases_s": {phase: median(step["phases_s"][phase] for step in steps) for phase in steps[0]["phases_s"]},
    }


def _notes(records: TrainingRecords, slowest: str) -> list[str]:
    config = records.config
    notes = []
    if config.device != "cuda":
        notes += [
            "Gloo's reduce-scatter is an all-reduce inside: in arm fsdp it sends twice what a ring reduce-scatter "
            "would; with one, all of that arm's bytes would be about a quarter less.",
            "On CPU nothing overlaps: a step is the sum of its phases. Where communication hides behind compute, fewer "
            "bytes buy less time than here, or none.",
        ]
    if config.islands:
        notes.append("No counter sees what crosses between islands: bytes are those that are predicted.")
    if not config.is_simulated:
        notes.append(
            "Times are of these links and this model. One that computes longer for each byte gains less: "
            "`isthmus plan` predicts yours from its units and the links."
        )
    elif config.device == "cuda":
        notes.append(
            "All nodes are on this machine, and their links are virtual cables over which NCCL uses sockets: no real "
            "network was measured. Ranks that share a GPU share its time, too: with one each, they compute faster."
        )
    else:
        notes.append(
            "All nodes share this machine's cores, so compute is slower than on as many machines, and the links' "
            "latency is that of a virtual cable. No real network was measured."
        )
    if records.carried:
        notes.append(
            "In brackets beside a link's rate: what it carried while the plain backend's reductions alone used it."
        )
    if config.micro_batches > 1:
        notes.append(
            f"Arms *-last reduce between nodes in the last of {config.micro_batches} micro-batches, others in each. "
            "Until then a rank keeps whole gradients, or with hsdp* a shard that is reduced within its node: the "
            "column of what is deferred has its size, as planned."
        )
    notes += [
        f"Arms hsdp* keep weights, gradients and optimizer state once on every node: {config.nodes} times the "
        "memory of the other arms, whose all-gathers cross between nodes instead"
        f"{'; arms ddp* keep them on every rank' if any(ARMS[arm].is_ddp for arm in config.arms) else ''}.",
        "One seed, and few steps: small differences of loss say nothing.",
    ]
    if slowest == UNSHAPED:
        notes.append("No link was shaped: times say nothing about a slow network.")
    return notes


def _disturbances(arms: dict[str, dict[str, Any]], load_before: float) -> list[str]:
    spread = {name: arm["max_step_s"] / arm["min_step_s"] for name, arm in arms.items()}
    disturbed = [f"{name} {ratio:.1f}x" for name, ratio in spread.items() if ratio > _CALM_SPREAD]
    if not disturbed:
        return []
    return [
        f"{DISTURBED}: the slowest timed step took much longer than the fastest ({', '.join(disturbed)}). Load before "
        f"the start was {load_before:.1f}. Repeat on an idle machine before believing times."
    ]


def advice(arms: dict[str, dict[str, Any]], ranks_per_node: int, notes: list[str]) -> str:
    """The fastest arm on Isthmus, with its options, if it beats the fastest plain one; else that one."""
    plain = _fastest_arm(arms, lambda arm: arm.is_plain)
    ours = _fastest_arm(arms, lambda arm: not arm.is_plain)
    if plain is None or ours is None:
        return "Nothing to set: it takes a plain arm and one on Isthmus to compare."
    ratio = arms[plain]["median_step_s"] / arms[ours]["median_step_s"]
    times = f"{arms[ours]['median_step_s']:.3g} s a step against {arms[plain]['median_step_s']:.3g} s"
    losses = f"validation loss {arms[ours]['val_loss']:.3f} against {arms[plain]['val_loss']:.3f}"
    if ratio > 1 + _EQUAL_TIMES:
        text = (
            f"Set {_settings(ours)}, {_layout(ours, ranks_per_node)}: {ours} was the fastest arm, {ratio:.2f} times as "
            f"fast as {plain}, the best plain one ({times}; {losses})."
        )
    else:
        text = (
            f"Set nothing: plain {plain}, {_layout(plain, ranks_per_node)}, is as good here. {ours}, the fastest arm "
            f"on Isthmus, was {ratio:.2f} times as fast ({times})."
        )
    disturbed = any(note.startswith(DISTURBED) for note in notes)
    return text + (" The run was disturbed, see above: repeat it first." if disturbed else "")


def _settings(arm: str) -> str:
    """The options of an arm on Isthmus, in both ways to give them, but for those that are the same in all arms."""
    options = {name: value for name, value in (ARMS[arm].options or {}).items() if (name, value) not in _IN_ALL_ARMS}
    keywords = ", ".join(f"{name}={value if value.isdecimal() else repr(value)}" for name, value in options.items())
    variables = " ".join(f"ISTHMUS_{name.upper()}={value}" for name, value in options.items())
    return f'init_process_group("isthmus", pg_options=isthmus.Options({keywords})) (or {variables})'


def _layout(arm: str, ranks_per_node: int) -> str:
    if ARMS[arm].is_ddp:
        prepared = "" if ARMS[arm].is_plain else " with isthmus.prepare(model)"
        return f"DDP{prepared}{', model.no_sync() until the last micro-batch' if ARMS[arm].defers else ''}"
    if ARMS[arm].hybrid_sharded:
        deferred = ", model.set_requires_all_reduce(is_last)" if ARMS[arm].defers else ""
        return f"sharded in the node and replicated across nodes{deferred}"
    kept = f" with reshard_after_forward={ranks_per_node}" if ARMS[arm].keeps_on_node else ""
    deferred = ", model.set_requires_gradient_sync(is_last)" if ARMS[arm].defers else ""
    return f"sharded over all ranks{kept}{deferred}"


def _fastest_arm(arms: dict[str, dict[str, Any]], kind: Callable[[Strategy], bool]) -> str | None:
    """The arm of that kind with the shortest step, if there is one."""
    candidates = [name for name in arms if kind(ARMS[name])]
    return min(candidates, key=lambda name: float(arms[name]["median_step_s"]), default=None)


def print_report(report: dict[str, Any], console: Console) -> None:
    """Print the tables and the notes."""
    console.print(_time_table(report))
    console.print(_byte_table(report))
    print_checks((arm["check"] for arm in report["arms"].values()), console)
    console.print()
    for note in report["notes"]:
        console.print(f"- {note}", highlight=False)


def _time_table(report: dict[str, Any]) -> Table:
    columns = [f"step\n{_link_text(report, link)}".replace(" (", "\n(") for link in report["links"]]
    # On a GPU phases overlap: a step has one part, itself.
    phases = [phase for phase in next(iter(report["arms"].values()))["phases_s"] if phase != WHOLE_STEP]
    columns += [phase.replace("_", "-").replace("reduce-scatter", "reduce-sc.") + "\n(of it)" for phase in phases]
    place = "" if len(report["links"]) == 1 or not phases else f"; the last three at {report['headline_link']}"
    unit, factor, digits = unit_of(report)
    table = figures_table("arm", f"Median {unit} a step{place}", columns)
    for name, arm in report["arms"].items():
        times = [arm["by_link"][link]["median_step_s"] for link in report["links"]]
        times += [arm["phases_s"][phase] for phase in phases]
        table.add_row(name, *(f"{factor * time:.{digits}f}" for time in times))
    return table


def unit_of(report: dict[str, Any]) -> tuple[str, int, int]:
    """The unit of step times, how many make a second, and the digits that are shown."""
    return ("ms", 1000, 1) if report["arguments"]["device"] == "cuda" else ("seconds", 1, 2)


def _link_text(report: dict[str, Any], link: str) -> str:
    """A link as it was asked for, and what it carried."""
    carried = report["carried_bits_per_s"].get(link)
    return link if carried is None else f"{link} ({link_rate_text(carried)})"


def _byte_table(report: dict[str, Any]) -> Table:
    accumulates, on_gpu = report["arguments"]["micro_batches"] > 1, report["arguments"]["device"] == "cuda"
    columns = [
        "link",
        "gather\n(of it)",
        "reduce\n(of it)",
        *(["GiB of a\nrank's GPU"] if on_gpu else []),
        *(["deferred\nMB a rank"] if accumulates else []),
        "val\nloss",
    ]
    table = figures_table("arm", "MB a step that the nodes' links sent, summed over nodes", columns)
    for name, arm in report["arms"].items():
        parts = ["link_bytes_per_step", *(f"{phase}_link_bytes_per_step" for phase in COMMUNICATION_PHASES)]
        memory = [f"{arm['gpu_bytes'] / 2**30:.2f}"] if on_gpu else []
        memory += [f"{arm['check']['predicted']['deferred_bytes'] / 1e6:.2f}"] if accumulates else []
        table.add_row(name, *(f"{arm[part] / 1e6:.2f}" for part in parts), *memory, f"{arm['val_loss']:.3f}")
    return table


def markdown(report: dict[str, Any]) -> str:
    """The report in short, to be kept beside others': what was run on what, a row an arm, and what it means."""
    arguments, versions = report["arguments"], report["versions"]
    unit, factor, digits = unit_of(report)
    links = [_link_text(report, link) for link in report["links"]]
    head = ["arm", *(f"{link}, {unit} a step" for link in links), "MB a step", "GiB a rank", "validation loss"]
    rows = []
    for name, arm in report["arms"].items():
        times = [f"{factor * arm['by_link'][link]['median_step_s']:.{digits}f}" for link in report["links"]]
        memory = f"{arm['gpu_bytes'] / 2**30:.2f}" if arguments["device"] == "cuda" else "-"
        rows.append([name, *times, f"{arm['link_bytes_per_step'] / 1e6:.2f}", memory, f"{arm['val_loss']:.4f}"])
    setting = (
        f"GPT of {report['model']['num_parameters']:,} parameters, {arguments['dtype']}, {arguments['sequences']} "
        f"sequences of {arguments['context']} a rank; {arguments['nodes']} nodes of {arguments['ranks_per_node']} "
        f"ranks: {report['network']}. {in_words(report['machine'])}. {report['created']}, "
        f"{', '.join(map(' '.join, versions.items()))}."
    )
    table = [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]
    notes = [f"- {note}" for note in report["notes"]]
    return "\n".join(["# isthmus bench training", "", setting, "", *table, "", *notes, "", report["advice"], ""])
