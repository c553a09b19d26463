#!/usr/bin/env python3
"""Draws the ranges of a step from traces of torch.profiler, one below the other: docs/recipes.md has how to make one.

Usage: timeline_figure.py PNG TITLE=TRACE...
"""

import json
import sys
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS = {
    "isthmus": "#b8b8b8",
    "intra": "#4c9be8",
    "encode": "#e8a33d",
    "inter": "#d1495b",
    "decode": "#2a9d5c",
    "compare": "#e8a33d",
}
WORKER = "isthmus_worker"


def draw(axes: Axes, title: str, trace: dict[str, Any]) -> None:
    """Draw calls of the calling thread, and what its worker did, in milliseconds."""
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    workers = {event["tid"] for event in events if event["name"] == "encode"}  # threads' names may be missing
    work = [event for event in events if event["name"].startswith("isthmus:") and event["tid"] in workers]
    calls = [event for event in events if event["name"].startswith("isthmus:") and event["tid"] not in workers]
    phases = [
        event for event in events if event["tid"] in workers and not event["name"].startswith(("isthmus:", "gloo:"))
    ]
    begin = min(event["ts"] for event in calls)
    span = max(event["ts"] + event["dur"] - begin for event in calls) / 1000
    for row, (kind, ranges) in enumerate((("calls", calls), (f"{WORKER}:\nunits", work), ("phases", phases))):
        for event in ranges:
            name = event["name"].removeprefix("isthmus:")
            colour = next((COLOURS[word] for word in COLOURS if event["name"].startswith(word)), "#dddddd")
            left, width = (event["ts"] - begin) / 1000, event["dur"] / 1000
            axes.barh(row, width, left=left, height=0.8, color=colour, edgecolor="white", linewidth=0.3)
            if kind != "phases" and width > span * 0.0045 * len(name):
                axes.text(left, row, f" {name}", va="center", fontsize=6)
    axes.set_yticks(range(3), ["calls", f"{WORKER}:\nunits", "phases"])
    axes.invert_yaxis()
    axes.set(title=title, xlabel="ms", xlim=(0, span))
    used = [word for word in COLOURS if any(event["name"].startswith(word) for event in phases)]
    axes.legend(
        [axes.barh(0, 0, color=COLOURS[word]) for word in used], used, loc="center left", bbox_to_anchor=(1, 0.5)
    )


def main() -> None:
    """Draw all traces."""
    picture, *traces = sys.argv[1:]
    figure = Figure(figsize=(12, 2.6 * len(traces)), layout="constrained")
    for axes, given in zip(figure.subplots(len(traces), 1, squeeze=False)[:, 0], traces, strict=True):
        title, _, path = given.rpartition("=")
        draw(axes, title, json.loads(Path(path).read_bytes()))
    figure.savefig(picture, dpi=110)


if __name__ == "__main__":
    main()
