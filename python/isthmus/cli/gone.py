"""Commands and options that are gone: calling one is an error that names what to use instead."""

from typing import Any

from typer.core import TyperGroup

from isthmus.cli.terminal import fail

#: As typed after `isthmus`, and what to use instead.
GONE = {
    "perf": "`isthmus bench collectives` times and verifies collectives, with --here over the links that are there",
    "watch": "`isthmus.log_to(writer)` sends figures to TensorBoard or wandb, `isthmus.summary()` prints them",
    "plan --links": "`isthmus topo --measure` prints the options of `isthmus plan` that say the same",
    "plan --parameters": "`isthmus plan --preset` has published models, --module takes one of your own",
    "plan --check": "`isthmus bench training` ends with predictions beside what its audited steps counted",
    "topo --output": "`isthmus topo --measure` prints the options of `isthmus plan`, with --json all it measured",
    "topo --svg": "`isthmus topo` prints the same as text, with --json as data to draw from",
    "bench auto": "the last line of `isthmus bench training` says what to set, and so does `isthmus plan`",
    "bench bias": "its figures stand in docs/quant.md; `isthmus bench convergence` compares what codecs do to the loss",
    "bench overhead": "`isthmus bench collectives` times calls of Isthmus beside those of Gloo",
    "bench pipeline": "its figures stand in docs/algorithms.md; `isthmus bench collectives` times reduce-scatters",
    "bench weights": "its figures stand in docs/weights.md; `isthmus bench training` counts what weights send",
}


class Commands(TyperGroup):
    """The commands of `isthmus` or of `isthmus bench`, which knows what is gone."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find a command, or fail where it or one of its options is gone."""
        command = args[0] if ctx.parent is None else f"{ctx.info_name} {args[0]}"
        for typed in (command, *(f"{command} {arg.partition('=')[0]}" for arg in args[1:])):
            if typed in GONE and not ctx.resilient_parsing:
                fail(f"`isthmus {typed}` is gone: {GONE[typed]}")
        return super().resolve_command(ctx, args)
