"""Byte counters of network interfaces."""

from pathlib import Path
from typing import NamedTuple


class Traffic(NamedTuple):
    """Bytes since a counter began, headers included where the counter counts them."""

    sent: int
    received: int

    def since(self, before: "Traffic") -> "Traffic":
        """The difference from an earlier reading."""
        return Traffic(self.sent - before.sent, self.received - before.received)


def interface_traffic(proc: Path = Path("/proc"), pid: int | str = "self") -> dict[str, Traffic]:
    """Return the counters of all interfaces as process `pid` sees them, by name.

    Read from /proc, which (unlike /sys) shows the network namespace of the process, not of the mount.
    """
    counters = {}
    for line in (proc / str(pid) / "net/dev").read_text().splitlines():
        name, colon, values = line.partition(":")
        if colon:
            words = values.split()
            counters[name.strip()] = Traffic(sent=int(words[8]), received=int(words[0]))
    return counters
