#!/usr/bin/env python3
"""Figures in documents: lists what made them, and makes them again.

    tools/figures.py                what there is: name, document, about how many minutes it takes, commit, command
    tools/figures.py NAME... | all  runs the commands and writes what they measured into the documents

A figure stands between two markers, with the command and the commit that it was made by. It takes a machine that has
nothing else to do, and a working tree without changes. What moved by more than a tenth is printed: the sentences around
a figure quote it, and are for the reader of that list to mend.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
OUT = "bench-out"
MOVED = 0.1
SECTION = "<!-- figures {name}: from here -->\n{body}\n<!-- figures: to here -->"
Cells = Sequence[str]


@dataclass(frozen=True)
class Figures:
    """What one command measures."""

    name: str
    command: str
    minutes: int
    # Markers' names, each with its document and with what makes Markdown of the command's results.
    sections: dict[str, tuple[str, Callable[[Any], str]]] = field(default_factory=dict)
    results: str = ""  # a JSON file that the command writes; else what it prints is taken
    document: str = ""  # that the command writes by itself, with its commit


def table(head: Cells, rows: Sequence[Cells]) -> str:
    """Return a Markdown table."""
    lines = ["".join(f"| {cell} " if cell else "| " for cell in row) + "|" for row in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def short(value: float, digits: int = 2) -> str:
    """Return a number without a zero before its point."""
    return re.sub(r"^0\.", ".", f"{value:.{digits}f}")


def documents(printed: str) -> Iterator[dict[str, Any]]:
    """Yield documents of JSON that stand one after the other."""
    while printed := printed.lstrip():
        document, end = json.JSONDecoder().raw_decode(printed)
        printed = printed[end:]
        yield document


# --- Training


def training(report: dict[str, Any]) -> str:
    """One row an arm."""
    link = report["headline_link"]
    head = ["arm", f"s a step at {link.replace('mbit', ' Mbit/s')}", "with no limit"]
    head += ["MB a step between nodes", "of it for gradients", "validation loss"]
    rows = []
    for name, arm in report["arms"].items():
        megabytes = (arm["link_bytes_per_step"] / 1e6, arm["reduce_scatter_link_bytes_per_step"] / 1e6)
        by_link = arm["by_link"]
        cells = [f"`{name}`", *(short(by_link[of]["median_step_s"]) for of in (link, "unshaped"))]
        rows.append([*cells, *(f"{value:.2f}" for value in megabytes), f"{arm['val_loss']:.3f}"])
    return table(head, rows)


def nodes(printed: str) -> str:
    """Arms by numbers of nodes, of reports one after the other: MB a step of one node's link, and of it gradients."""
    reports = {report["arguments"]["nodes"]: report["arms"] for report in documents(printed)}

    def cell(arm: dict[str, Any], num_nodes: int) -> str:
        whole, part = (arm[f"{name}link_bytes_per_step"] / num_nodes / 1e6 for name in ("", "reduce_scatter_"))
        return f"{whole:.2f} ({part:.2f})"

    arms = next(iter(reports.values()))
    rows = [[f"`{arm}`", *(cell(of[arm], number) for number, of in reports.items())] for arm in arms]
    return table(["arm", *(f"{number} nodes" for number in reports)], rows)


# --- Codecs

INSTRUCTION_SETS = {"baseline": "SSE2", "AVX2": "AVX2", "AVX-512": "AVX-512"}
Speeds = dict[str, dict[str, dict[str, float]]]  # by instruction set and benchmark: GB/s, of_memcpy


def speeds(printed: str) -> Speeds:
    """Read what bench_codecs printed as JSON, one document an instruction set."""
    return {
        report["context"]["instruction_set"]: {row["name"].split("/64MiB")[0]: row for row in report["benchmarks"]}
        for report in documents(printed)
    }


#: Benchmarks, with the row's name and its target with AVX2.
QUANT = {
    "quant/8bit": ("`quant` 8 bits", ""),
    "quant/4bit": ("`quant` 4 bits", "0.5 / 0.8"),
    "quant/3bit": ("`quant` 3 bits", ""),
    "quant/2bit": ("`quant` 2 bits", "0.45 / 0.8"),
    "quant/1bit": ("`quant` 1 bit", ""),
    "quant/4bit-feedback": ("`quant` 4 bits, error feedback", ""),
}
TAGC = {
    "exact_sum": "exact sum",
    "none/encode": "`none` encode",
    "none/decode": "`none` decode",
    **{f"tagc/{level}/{way}": f"`tagc` {level} {way}" for level in ("2x", "4x", "10x") for way in ("encode", "decode")},
}


def quant(printed: str) -> str:
    """Rows with the shares of memcpy's speed."""
    found = speeds(printed)
    rows = []
    for benchmark, (name, target) in QUANT.items():
        shares = (
            " / ".join(f"{found[one][f'{benchmark}/{way}']['of_memcpy']:.2f}" for way in ("encode", "decode"))
            for one in INSTRUCTION_SETS
        )
        rows.append([name, *shares, target])
    return table(["of memcpy, encode / decode", *INSTRUCTION_SETS.values(), "target with AVX2"], rows)


def tagc(printed: str) -> str:
    """Rows with GB/s and the shares of memcpy's speed."""
    found = speeds(printed)
    rows = [
        [
            name,
            f"{found['AVX2'][row]['GB/s']:.2f}",
            *(f"{found[one][row]['of_memcpy']:.2f}" for one in INSTRUCTION_SETS),
        ]
        for row, name in TAGC.items()
    ]
    return table(["", "GB/s of source, AVX2", "of memcpy: SSE2", "AVX2", "AVX-512"], rows)


# --- All of them

BENCHMARKS = "build/release/benchmarks"
FIGURES = (
    Figures(
        "training",
        "isthmus bench training",
        10,
        {"training": ("docs/demo.md", training)},
        f"{OUT}/training/report.json",
    ),
    Figures(
        "nodes",
        "for nodes in 2 4 8; do isthmus bench training --nodes $nodes --ranks-per-node 1 --arms fsdp,hsdp,quant,full "
        "--link 50mbit --steps 2 --timed-steps 4 --audited-steps 1 --sequences 1 --device cpu --output "
        f"{OUT}/nodes-$nodes > /dev/null || exit; cat {OUT}/nodes-$nodes/report.json; done",
        15,
        {"nodes": ("docs/demo.md", nodes)},
    ),
    Figures(
        "codecs",
        f"for set in {' '.join(INSTRUCTION_SETS)}; do {BENCHMARKS}/bench_codecs --instruction_set=$set "
        "--benchmark_filter=64MiB --benchmark_format=json || exit; done",
        5,
        {
            "codecs": ("docs/quant.md", lambda printed: f"{quant(printed)}\n\n{tagc(printed)}"),
        },
    ),
    Figures("faults", "python tests/faults/table.py", 10, document="docs/faults.md"),
    Figures(
        "plan",
        "isthmus plan --preset llama2-7b --nodes 2 --ranks-per-node 8 --inter 25gbit --intra 3600gbit "
        "--plot docs/figures/plan.png > /dev/null",
        1,
    ),
)


def sections_of(text: str) -> dict[str, str]:
    """Return what stands between the markers of a document, by name."""
    pattern = re.escape(SECTION).replace(r"\{name\}", "(.+?)").replace(r"\{body\}", "(.*?)")
    return dict(re.findall(pattern, text, re.DOTALL))


def made_by(command: str, commit: str, day: str, machine: str) -> str:
    """Return the line that stands below a figure."""
    return f"Made by `{command}` on commit `{commit}`, {day}, {machine}."


def moved(before: str, after: str) -> Iterator[str]:
    """Name the rows of a table whose numbers moved by more than a tenth, or all if there are others than before."""
    old, new = ([line for line in text.splitlines() if line.startswith("|")] for text in (before, after))
    if len(old) != len(new):
        yield "    other rows than before"
        return
    for was, now in zip(old, new, strict=True):
        pairs = list(zip(numbers(was), numbers(now), strict=False))
        if len(numbers(was)) != len(numbers(now)) or any(abs(a - b) > MOVED * abs(a) for a, b in pairs):
            yield f"    was {was}\n    is  {now}"


def numbers(line: str) -> list[float]:
    """Return all numbers with a point in a line."""
    return [float(number) for number in re.findall(r"(?<![\w.])\d*\.\d+", line)]


def make(figures: Figures, commit: str, machine: str) -> None:
    """Run the command and write what it measured into the documents."""
    print(f"{figures.name}: {figures.command}  (about {figures.minutes} minutes)", flush=True)
    if figures.results:
        shutil.rmtree((ROOT / figures.results).parent, ignore_errors=True)  # benchmarks go on where they were
        (ROOT / figures.results).parent.mkdir(parents=True)
    capture = subprocess.PIPE if figures.sections and not figures.results else None
    printed = subprocess.run(["bash", "-c", figures.command], cwd=ROOT, stdout=capture, text=True, check=True).stdout
    results = json.loads((ROOT / figures.results).read_text()) if figures.results else printed
    made = made_by(figures.command, commit, datetime.now(UTC).date().isoformat(), machine)
    for name, (document, render) in figures.sections.items():
        path = ROOT / document
        text = path.read_text()
        before = sections_of(text)[name]
        after = f"\n{render(results)}\n\n{made}\n"
        path.write_text(text.replace(SECTION.format(name=name, body=before), SECTION.format(name=name, body=after)))
        print(f"{document}, {name}:", *moved(before, after), sep="\n", flush=True)
    if figures.name == "training":
        shutil.copy((ROOT / figures.results).with_suffix(".png"), ROOT / "docs/figures/demo.png")


def git(*arguments: str) -> str:
    """Ask git about this checkout."""
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def commit_in(text: str) -> str:
    """Return the commit that a document says a figure was made on."""
    found = re.search(r"\bcommit `(\w+)`", text)
    return found[1] if found else "?"


def show() -> None:
    """List all figures."""
    for figures in FIGURES:
        print(f"{figures.name}: {figures.command}  (about {figures.minutes} minutes)")
        for name, (document, _) in figures.sections.items():
            print(f"    {document}, {name}: commit {commit_in(sections_of((ROOT / document).read_text())[name])}")
        if figures.document:
            print(f"    {figures.document}: commit {commit_in((ROOT / figures.document).read_text())}")


def main() -> None:
    """Do what the arguments say."""
    names = sys.argv[1:]
    if not names:
        show()
        return
    known = [figures.name for figures in FIGURES]
    unknown = [name for name in names if name not in (*known, "all")]
    if unknown:
        sys.exit(f"figures {', '.join(unknown)}: expected all, or some of {', '.join(known)}")
    if changed := git("status", "--porcelain", "--", ".", ":!docs"):
        sys.exit(f"figures name the commit that they were made on, and there are changes:\n{changed}")
    from isthmus.base import native
    from isthmus.benchmarks.common.report import in_words, machine

    place = f"{in_words(machine())}, packets of version {native.load().PACKET_VERSION}"
    for figures in FIGURES:
        if "all" in names or figures.name in names:
            make(figures, git("rev-parse", "--short", "HEAD"), place)


if __name__ == "__main__":
    main()
