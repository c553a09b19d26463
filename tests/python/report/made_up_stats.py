"""Statistics as a group of two nodes would have them, for tests that need no group."""

from typing import Any


def collective(**counted: float) -> dict[str, Any]:
    """Counters of a kind of collective, by `inter` and `intra` bytes and seconds by phase."""
    traffic = {
        tier: {"sent_bytes": counted.get(tier, 0), "inter_node_sent_bytes": counted.get(tier, 0) * (tier != "intra")}
        for tier in ("intra", "inter", "flat")
    }
    seconds = {name: counted.get(name, 0.0) for name in ("intra_s", "exchange_s", "encode_s", "decode_s")}
    return {"calls": 1, "packed_calls": 0, **traffic, **seconds}


def unit(name: str = "0", **changes: Any) -> dict[str, Any]:
    """A unit that codec quant reduced once: 1000 elements of bfloat16 in 500 bytes."""
    return {
        "name": name,
        "collective": "reduce_scatter",
        "num_elements": 2000,
        "dtype": "bfloat16",
        "codec": "quant",
        "settings": "quant bits=4",
        "reason": "",
        "calls": 1,
        "coded_elements": 1000,
        "unchanged_calls": 0,
        "packet_bytes": 500,
        "bits_per_element": 4.0,
        "relative_squared_error": 0.01,
    } | changes


def group(**changes: Any) -> dict[str, Any]:
    """The statistics of a group in which one unit was reduced, and weights were gathered."""
    collectives = {
        "reduce_scatter": collective(inter=500, intra=3000, exchange_s=2.0, encode_s=0.5),
        "all_gather": collective(inter=9500, intra=6000, exchange_s=3.0),
        "all_reduce": collective(),
    }
    found: dict[str, Any] = {
        "node_map": "2 nodes x 2 ranks, in blocks",
        "node_map_source": "option nodes",
        "options": "codec=quant",
        "calls": {"_reduce_scatter_base": 1},
        "world": {},
        "collectives": collectives,
        "codec": {"encoded_elements": 1000},
        "weights": {"gathers": 0, "whole": {}},
        "peer_waits_s": {"intra": {1: 0.25}, "inter": {2: 2.0}, "flat": {}},
        "compressed_calls": 1,
        "exact_calls": {},
        "skipped_steps": 1,
        "dropped_residuals": 0,
        "num_units": 1,
        "residual_bytes": 0,
        "scratch_bytes": 64,
        "units": [unit()],
        "ran_s": 10.0,
        "waited_s": 4.0,
        "devices": {"cpu": {"compressed_calls": 1, "skipped_steps": 1, "units": [unit()]}},
        "one_tier": "",
        "notes": [],
    }
    return found | changes


def empty(**changes: Any) -> dict[str, Any]:
    """The statistics of a group that nothing was reduced in."""
    kinds = dict.fromkeys(("reduce_scatter", "all_gather", "all_reduce"), collective())
    return (
        group(
            collectives=kinds,
            compressed_calls=0,
            units=[],
            calls={},
            ran_s=0.0,
            waited_s=0.0,
            peer_waits_s={tier: {} for tier in ("intra", "inter", "flat")},
            devices={},
        )
        | changes
    )
