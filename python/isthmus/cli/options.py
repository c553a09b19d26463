"""Makes a command's options from the dataclass that they fill."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from isthmus.benchmarks.common.options import Option, options_of
from isthmus.cli.terminal import failures_told

#: Why an option is refused where it has no meaning, by where alone it has one.
_ONLY = {
    "here": "only with --here",
    "simulated": (
        "only for simulated nodes; with --here nodes are the launcher's, with --islands the machine's, and links are "
        "as they are: leave it out"
    ),
}


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
        default: Any = [_shown(self.default)] if isinstance(self.default, tuple) else self.default
        if self.option.show_default or self.option.on_gpu is not None:
            defaults = [_shown(each) for each in (self.default, self.option.on_gpu) if each is not None]
            settings["show_default"] = self.option.show_default or "; on GPUs ".join(defaults)
            kind, default = kind | None, None
        if self.option.is_file:
            settings |= {"exists": True, "dir_okay": False}
        names = [f"--{self.name}"] if kind is bool else []  # no --no-...
        annotation = Annotated[kind, typer.Option(*names, **settings)]
        return inspect.Parameter(self.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)

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


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def filled(arguments: type, simulated_only: Sequence[str] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function whose first parameter is of the dataclass `arguments`.

    The dataclass's options come first, then the function's further parameters. Errors that a user can cause become one
    message, see `failures_told`. simulated_only: the function's further parameters that --here leaves without meaning.
    """
    kinds, options = get_type_hints(arguments), options_of(arguments)
    parameters = [
        _Parameter(each.name, options[each.name], kinds[each.name], each.default)
        for each in fields(arguments)
        if each.name in options
    ]

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(function).parameters.values())[1:]

        def command(_context: typer.Context, **given: Any) -> None:
            def is_given(name: str) -> bool:
                source = _context.get_parameter_source(name)
                return source is not None and source.name == "COMMANDLINE"

            with failures_told(extra="bench"):
                is_real = given.get("here") or given.get("islands")
                meaningless, further = ("simulated", simulated_only) if is_real else ("here", ())
                names = [each.name for each in parameters if each.option.only == meaningless]
                for name in filter(is_given, [*names, *further]):
                    raise ValueError(f"--{name.replace('_', '-')}: {_ONLY[meaningless]}")
                values = {each.field: each.value_of(given.pop(each.name)) for each in parameters}
                if hasattr(arguments, "given"):
                    values["given"] = tuple(each.field for each in parameters if is_given(each.name))
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
