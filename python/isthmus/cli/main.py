"""The command line: `isthmus ...`."""

import json as json_module
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from isthmus.cli.bench import bench
from isthmus.cli.plan import plan
from isthmus.cli.terminal import WIDTH, console, failures_told, run

app = typer.Typer(no_args_is_help=True)
app.add_typer(bench, name="bench")
app.command()(plan)


@app.command()
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
            from isthmus.cli.measure import measure_world

            return measure_world(console(), json)
        from isthmus import _topology
        from isthmus.cli.overview import overview, print_overview

        machine = _topology.discover() if recorded is None else _topology.read_machine(str(recorded))
        view = overview(machine, nodes)
        if json:
            print(json_module.dumps(view, indent=2))
        else:
            print_overview(view, Console(width=WIDTH))


@app.command()
def info(json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False) -> None:
    """Show versions, features, options and variables in force: the facts for a bug report."""
    with failures_told():
        from isthmus.report.info import SCHEMA, collect, print_info

        found = collect()
        if json:
            print(json_module.dumps({"schema": SCHEMA, **found}, indent=2))
        else:
            print_info(found, Console(width=WIDTH))


def _print_version(is_asked: bool) -> None:
    if is_asked:
        print(f"isthmus {version('isthmus')}")
        raise typer.Exit()


@app.callback()
def _options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Isthmus: FSDP over slow links between nodes."""


def main() -> None:
    """Entry point."""
    run(app)
