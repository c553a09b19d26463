"""Reads dataclasses from JSON, and checks each value by the type of its field."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from functools import cache
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

_MOST_NUMBER = 2**53
_MOST_NESTED = 40
_MOST_SHOWN = 60

Record = TypeVar("Record")


def read_record(kind: type[Record], value: Any, place: str) -> Record:
    """The dataclass that an object describes; keys that are no field's are ignored. place: how errors name the object.

    Integers are 0 or more, other numbers above 0.
    Raises ValueError naming the place of what is missing, of the wrong type or out of range.
    """
    if not isinstance(value, dict):
        raise _wrong(place, "an object", value)
    if place.count(".") > _MOST_NESTED:
        raise ValueError(f"{place[:_MOST_SHOWN]}...: objects nest more than {_MOST_NESTED} deep")
    types = _types_of(kind)  # type: ignore[arg-type]
    read = {}
    for field in fields(kind):  # type: ignore[arg-type]
        if field.name in value:
            read[field.name] = _read(types[field.name], value[field.name], f"{place}.{field.name}")
        elif field.default is MISSING:
            raise ValueError(f"{place}: '{field.name}' is missing")
    return kind(**read)


@cache
def _types_of(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _read(kind: Any, value: Any, place: str) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):  # with None
        return None if value is None else _read(inner[0], value, place)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise _wrong(place, "a list", value)
        return tuple(_read(inner[0], item, f"{place}[{index}]") for index, item in enumerate(value))
    if is_dataclass(kind):
        return read_record(kind, value, place)  # type: ignore[arg-type]
    return _read_plain(kind, value, place)


def _read_plain(kind: Any, value: Any, place: str) -> Any:
    if kind is str:
        if not isinstance(value, str) or not value.isprintable():
            raise _wrong(place, "text of printable characters", value)
        return value
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        if value not in list(kind):
            raise _wrong(place, ", ".join(kind), value)
        return kind(value)
    is_number = isinstance(value, int if kind is int else (int, float)) and not isinstance(value, bool)
    if not is_number or not (value >= 0 if kind is int else value > 0) or value > _MOST_NUMBER:
        raise _wrong(place, "a whole number of 0 or more" if kind is int else "a number above 0", value)
    return kind(value)


def _wrong(place: str, expected: str, value: Any) -> ValueError:
    text = json.dumps(value)
    shown = text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "..."
    return ValueError(f"{place}: expected {expected}, got {shown}")
