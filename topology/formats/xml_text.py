"""Untrusted XML: elements with their attributes and lines. Text, comments and entities are not kept."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any
from xml.parsers import expat

from isthmus.topology.machine import TopologyError, printable


@dataclass(eq=False, slots=True)
class Element:
    """An element. line: where it begins."""

    tag: str
    attributes: dict[str, str]
    line: int
    children: list[Element] = field(default_factory=list)

    def all(self, tag: str) -> list[Element]:
        """Its children of that name."""
        return [child for child in self.children if child.tag == tag]


def parse_xml(text: str) -> Element:
    """The root. TopologyError: this is no well-formed XML, or it declares entities."""
    begin = text.lstrip()
    lines_before = text[: len(text) - len(begin)].count("\n")
    parser = expat.ParserCreate("utf-8")  # whatever encoding the declaration names: this is text already
    document = Element("", {}, 0)
    open_elements = [document]

    def start(tag: str, attributes: dict[str, str]) -> None:
        element = Element(tag, attributes, lines_before + parser.CurrentLineNumber)
        open_elements[-1].children.append(element)
        open_elements.append(element)

    def refuse_entity(*_: Any) -> None:
        line = lines_before + parser.CurrentLineNumber
        raise TopologyError("declares XML entities, which descriptions of machines do not need", line=line)

    parser.StartElementHandler, parser.EndElementHandler, parser.EntityDeclHandler = (
        start,
        lambda _: open_elements.pop(),
        refuse_entity,
    )
    try:
        parser.Parse(begin.encode(), True)
    except expat.ExpatError as error:
        what = f"is no well-formed XML: {expat.ErrorString(error.code)}"
        raise TopologyError(what, line=lines_before + error.lineno) from None
    except UnicodeEncodeError as error:
        raise TopologyError(f"is no text: {error.reason}") from None
    return document.children[0]


def text_of(element: Element, name: str) -> str | None:
    """An attribute, without blanks around it and without control characters; None: it is missing or empty."""
    return printable(element.attributes.get(name, "").strip()) or None


def integer_of(element: Element, name: str, least: int, most: int) -> int | None:
    """A decimal number, or a hexadecimal one with 0x; None: it is missing. TopologyError: no number or out of range."""
    value = text_of(element, name)
    if value is None:
        return None
    is_number = re.fullmatch(r"[+-]?\d{1,18}|0[xX][0-9a-fA-F]{1,16}", value, re.ASCII)
    number = int(value, 16 if value[:2] in ("0x", "0X") else 10) if is_number else None
    if number is None or not least <= number <= most:
        raise TopologyError(
            f"<{element.tag}> has {name}='{value[:40]}': expected an integer from {least} to {most}", line=element.line
        )
    return number
