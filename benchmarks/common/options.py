"""Fields of a benchmark's arguments that are options of its command, with their help; and checks of their values.

The command line is made from these fields (`isthmus.cli.options`), so that names, defaults and texts stand once.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from isthmus.plan.ranges import check_range

METADATA = "option"
_BYTE_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class Option:
    """How a field is given on the command line. A tuple is comma-separated text, given once or several times.

    Each file of a tuple is given by itself.
    """

    help: str
    #: In place of the field's name; "layers" makes --layers.
    name: str = ""
    #: Shown for a default that the command line cannot show itself.
    show_default: str = ""
    #: From text to a value, or to an item of a tuple. Raises ValueError naming the text.
    parse: Callable[[str], Any] | None = None
    #: A file that exists.
    is_file: bool = False
    #: "simulated" or "here": where alone it has a meaning, of a command that has --here.
    only: str = ""
    #: The default where tensors are on GPUs; None: the same.
    on_gpu: Any = None


def option(default: Any, help: str, **settings: Any) -> Any:
    """A field of a dataclass that is an option, too. settings: as in `Option`."""
    return field(default=default, metadata={METADATA: Option(help, **settings)})


def options_of(arguments: type) -> dict[str, Option]:
    """The options of a dataclass, by the fields that they fill."""
    return {each.name: each.metadata[METADATA] for each in fields(arguments) if METADATA in each.metadata}


def check_ranges(values: object, ranges: Mapping[str, tuple[int, int]]) -> None:
    """Raise ValueError naming the first field that is out of its range, its value and the range."""
    for name, (low, high) in ranges.items():
        check_range(name, getattr(values, name), low, high)


def parse_bytes(text: str) -> int:
    """65536 for "64K". Raises ValueError naming the text."""
    digits, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    if not digits.isdecimal() or unit not in _BYTE_UNITS:
        raise ValueError(f"size '{text}': expected a whole number, with K, M or G if wanted")
    return int(digits) * _BYTE_UNITS[unit]
