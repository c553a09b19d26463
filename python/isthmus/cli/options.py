"""Makes a command's options from the dataclass that they fill."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from isthmus.benchmarks.common.options import Option, options_of
from isthmus.cli.terminal import failures_told

_SIMULATED = "only for simulated nodes; with --here nodes are the launcher's, and links are as they are: leave it out"


@dataclass(frozen=True)
class _Parameter:
    """An option of the command, and the field that it fills."""

    field: str
    option: Option
    kind: Any
    default: Any

    @property
    def name(self) -> str:
        """The name from which typer makes the option's."""
        return self.option.name or self.field

    def for_typer(self) -> inspect.Parameter:
        """The parameter of the function that typer calls. None in it: not given."""
        kind: Any = Path if self.option.is_file else str if self.option.parse else self.kind
        if isinstance(self.default, tuple):
            kind = list[Path] if self.option.is_file else list[str]
        settings: dict[str, Any] = {"help": self.option.help}
        default: Any = [",".join(map(str, self.default))] if isinstance(self.default, tuple) else self.default
        if self.option.show_default or self.option.on_gpu is not None:
            kind, settings["show_default"], default = kind | None, self.option.show_default or self._defaults(), None
        if self.option.is_file:
            settings |= {"exists": True, "dir_okay": False}
        names = [f"--{self.name}"] if kind is bool else []  # no --no-...
        annotation = Annotated[kind, typer.Option(*names, **settings)]
        return inspect.Parameter(self.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)

    def _defaults(self) -> str:
        values = [self.default, *([] if self.option.on_gpu is None else [self.option.on_gpu])]
        return "; on GPUs ".join(
            ",".join(map(str, value)) if isinstance(value, tuple) else str(value) for value in values
        )

    def value_of(self, given: Any) -> Any:
        """The field's value for typer's value. Raises ValueError naming text that cannot be read."""
        if given in (None, []):
            return self.default
        parse = self.option.parse or (lambda text: text)
        if isinstance(self.default, tuple):
            if self.option.is_file:
                return tuple(map(str, given))
            return tuple(parse(item.strip()) for item in ",".join(given).split(","))
        return str(given) if self.option.is_file else parse(given)


def filled(
    arguments: type, extra: str = "bench", simulated_only: Sequence[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function whose first parameter is of the dataclass `arguments`.

    The dataclass's options come first, then the function's further parameters. Errors that a user can cause become one
    message, see `failures_told`. extra: the optional dependency that brings the function's imports. simulated_only: the
    function's further parameters that --here leaves without a meaning.
    """
    parameters = list(_parameters(arguments))

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(function).parameters.values())[1:]

        def command(_context: typer.Context, **given: Any) -> None:
            with failures_told(extra=extra):
                if not given.get("here"):
                    _refuse(
                        _context, [each.name for each in parameters if each.option.only == "here"], "only with --here"
                    )
                else:
                    names = [each.name for each in parameters if each.option.only == "simulated"]
                    _refuse(_context, [*names, *simulated_only], _SIMULATED)
                values = {each.field: each.value_of(given.pop(each.name)) for each in parameters}
                if hasattr(arguments, "given"):
                    values["given"] = tuple(each.field for each in parameters if _is_given(_context, each.name))
                function(arguments(**values), **given)

        context = inspect.Parameter("_context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
        everything = [context, *(each.for_typer() for each in parameters), *own]
        command.__name__, command.__doc__ = function.__name__, function.__doc__
        command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in everything]
        )
        command.__annotations__ = {each.name: each.annotation for each in everything}
        return command

    return decorate


def _refuse(context: typer.Context, names: Sequence[str], why: str) -> None:
    """Raise ValueError for the first of these options that was given."""
    for name in names:
        if _is_given(context, name):
            raise ValueError(f"--{name.replace('_', '-')}: {why}")


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _parameters(arguments: type) -> Iterator[_Parameter]:
    kinds = get_type_hints(arguments)
    options = options_of(arguments)
    for each in fields(arguments):
        if each.name in options:
            yield _Parameter(each.name, options[each.name], kinds[each.name], each.default)
