"""Rates and byte counters of network links."""

import re
from pathlib import Path

_RATE = re.compile(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)")
_BITS_PER_S = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


def parse_link_rate(text: str) -> float:
    """Return the bits per second that a rate such as "200mbit" names, in the units of `tc`.

    Raises ValueError, naming text and accepted form, for anything else and outside 100kbit ... 100gbit.
    """
    match = _RATE.fullmatch(text)
    rate = float(match[1]) * _BITS_PER_S[match[2]] if match else 0.0
    if not 1e5 <= rate <= 1e11:
        raise ValueError(f"link rate '{text}': expected a number and kbit, mbit or gbit, from 100kbit to 100gbit")
    return rate


def link_rate_text(bits_per_s: float) -> str:
    """A rate as `parse_link_rate` takes it, in three digits: "9.04gbit"."""
    unit = "gbit" if bits_per_s >= _BITS_PER_S["gbit"] else "mbit"
    return f"{bits_per_s / _BITS_PER_S[unit]:.3g}{unit}"


def interfaces_sent_bytes(proc: Path = Path("/proc"), pid: int | str = "self") -> dict[str, int]:
    """Return what each interface that process `pid` sees has sent since it exists, headers included, by name.

    Read from /proc, which (unlike /sys) shows the network namespace of the process, not of the mount.
    """
    lines = [line.partition(":") for line in (proc / str(pid) / "net/dev").read_text().splitlines()]
    return {name.strip(): int(values.split()[8]) for name, colon, values in lines if colon}
