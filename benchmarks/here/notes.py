"""What is to be said of the NICs' counters behind a report."""

from collections.abc import Mapping
from typing import Any

#: Begins a note that casts doubt on the figures.
DISTURBED = "DISTURBED"
#: Traffic of others from this share of the bytes on is said.
_OTHER_TRAFFIC = 0.02
#: What nodes send each other, they receive: a larger difference is somebody else's traffic.
_UNBALANCED = 0.05
_MOST_NAMED = 6


def nic_notes(nics: dict[str, Any], measured: Mapping[str, tuple[float, float | None]]) -> list[str]:
    """What was counted, what was not, and what disturbs it.

    nics: `Stage.nics()`. measured: by name of what was timed, its seconds and the bytes that were counted meanwhile.
    """
    if nics["not_counted"]:
        without = _by_host(nics["not_counted"])
        return [f"NOT COUNTED: NICs that are up and have no counter ({without}). No bytes are shown as counted."]
    idle, sent, received = (nics[key] for key in ("idle_sent_bytes_per_s", "run_sent_bytes", "run_received_bytes"))
    notes = [f"Bytes are the NICs' own counters, summed over nodes ({_by_host(nics['counted'])})."]
    shares = {name: idle * seconds / num_bytes for name, (seconds, num_bytes) in measured.items() if num_bytes}
    disturbed = [f"{name} {share:.0%}" for name, share in shares.items() if share > _OTHER_TRAFFIC]
    if disturbed:
        more = f" and {len(disturbed) - _MOST_NAMED} more" if len(disturbed) > _MOST_NAMED else ""
        notes.append(
            f"{DISTURBED}: the NICs sent {idle / 1e6:.3g} MB/s while all ranks were idle; as a share of what was "
            f"counted: {', '.join(disturbed[:_MOST_NAMED])}{more}. Nothing was taken off."
        )
    if abs(sent - received) > _UNBALANCED * max(sent, received):
        notes.append(
            f"{DISTURBED}: over the whole run the nodes' NICs sent {sent / 1e6:.2f} MB and received "
            f"{received / 1e6:.2f} MB: other hosts take part, or packets were lost."
        )
    return notes


def _by_host(names: dict[str, list[str]]) -> str:
    return "; ".join(f"{host}: {', '.join(own)}" for host, own in names.items())
