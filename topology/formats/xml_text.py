"""Untrusted XML: read without entities or network access, and with the line of each error."""

from __future__ import annotations

import re

from lxml import etree

from isthmus.topology.machine import TopologyError, printable

_DECLARATION = re.compile(r"\s*<\?xml\b[^>]*>")


def parse_xml(text: str) -> etree._Element:
    """The root element. TopologyError: this is no well-formed XML, it declares entities, or nests absurdly deep."""
    if "<!ENTITY" in text:
        declared_at = text[: text.index("<!ENTITY")].count("\n") + 1
        raise TopologyError("declares XML entities, which descriptions of machines do not need", line=declared_at)
    parser = etree.XMLParser(
        encoding="utf-8",
        resolve_entities=False,
        no_network=True,
        load_dtd=False,
        huge_tree=False,
        remove_comments=True,
        remove_pis=True,
    )
    try:
        root = etree.fromstring(_without_declaration(text).encode(), parser)
    except etree.XMLSyntaxError as error:
        line = error.lineno if isinstance(error.lineno, int) and error.lineno > 0 else None
        raise TopologyError(f"is no well-formed XML: {_without_place(error.msg)}", line=line) from None
    except UnicodeEncodeError as error:
        raise TopologyError(f"is no text: {error.reason}") from None
    if (entity := next(root.iter(etree.Entity), None)) is not None:
        raise TopologyError("refers to an XML entity", line=line_of(entity))
    return root


def _without_declaration(text: str) -> str:
    """<?xml ...?> names an encoding that no longer holds, and may not stand after blank lines. Line numbers stay."""
    match = _DECLARATION.match(text)
    return "\n" * match[0].count("\n") + text[match.end() :] if match else text


def _without_place(message: str | None) -> str:
    return re.sub(r", line \d+, column \d+.*", "", message or "unknown error", flags=re.DOTALL)


def line_of(element: etree._Element) -> int | None:
    """Where an element begins."""
    line: object = element.sourceline
    return line if isinstance(line, int) else None


def text_of(element: etree._Element, name: str) -> str | None:
    """An attribute, without blanks around it and without control characters; None: it is missing or empty."""
    return printable(element.get(name, "").strip()) or None


def integer_of(element: etree._Element, name: str, least: int, most: int) -> int | None:
    """A decimal number, or a hexadecimal one with 0x; None: it is missing. TopologyError: no number or out of range."""
    value = text_of(element, name)
    if value is None:
        return None
    number = to_integer(value)
    if number is None or not least <= number <= most:
        raise TopologyError(
            f"<{element.tag}> has {name}='{value[:40]}': expected an integer from {least} to {most}",
            line=line_of(element),
        )
    return number


def to_integer(value: str) -> int | None:
    """The number in decimal digits, or hexadecimal ones after 0x; None: no integer, or more than 18 digits."""
    if re.fullmatch(r"[+-]?\d{1,18}", value, re.ASCII):
        return int(value)
    return int(value, 16) if re.fullmatch(r"0[xX][0-9a-fA-F]{1,16}", value) else None


def cpus_of_mask(mask: str) -> str | None:
    """Processors in a mask of 32-bit words, the highest first: "000000ff,ffff0000" -> "16-39". None: no such mask.

    hwloc writes 0x before each word and leaves words of zero out; it writes 0xf...f for "and all above", which says
    nothing of how many there are: None.
    """
    words = mask.strip().split(",")
    if len(words) > 1024 or not all(re.fullmatch(r"(?:0[xX])?[0-9a-fA-F]{0,8}", word.strip()) for word in words):
        return None
    bits = 0
    for word in words:
        digits = word.strip().lower().removeprefix("0x")
        bits = bits << 32 | (int(digits, 16) if digits else 0)
    return _ranges(bits) or None


def _ranges(bits: int) -> str:
    from_lowest = f"{bits:b}"[::-1]
    runs = ((run.start(), run.end() - 1) for run in re.finditer("1+", from_lowest))
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
