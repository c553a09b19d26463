"""`isthmus topo`: what a machine looks like, and which NIC each rank uses."""

import json as json_module
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from isthmus.cli.terminal import WIDTH, console, failures_told


def topo(
    recorded: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="A recorded machine: hwloc XML (lstopo), NCCL topology XML, or `nvidia-smi topo -m`.",
            show_default="this machine",
        ),
    ] = None,
    nodes: Annotated[
        str | None,
        typer.Option(help='Nodes made of such machines: "2x8" or "0,1|2,3".', show_default="none"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="Time the links within and between nodes instead, over the ranks that a launcher started: "
            "`torchrun ... -m isthmus topo --measure`.",
        ),
    ] = False,
) -> None:
    """Show a machine's GPUs, NICs and links, which NIC each rank should use, and the nodes it is part of."""
    with failures_told():
        if measure:
            if recorded is not None or nodes is not None:
                raise ValueError("--measure: no other option but --json; ISTHMUS_NODES says how nodes are made")
            from isthmus.group.measure import measure_world

            return measure_world(console(), json)
        from isthmus import _topology
        from isthmus.cli.overview import overview, print_overview

        machine = _topology.discover() if recorded is None else _topology.read_machine(str(recorded))
        view = overview(machine, nodes)
        if json:
            print(json_module.dumps(view, indent=2))
        else:
            print_overview(view, Console(width=WIDTH))
