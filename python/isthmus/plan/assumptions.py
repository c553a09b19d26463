"""Assumptions of a prediction of time: cluster and links, speed of the codec, and compute. Nothing is measured here."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from isthmus.group.nodes.islands import misfit
from isthmus.plan.placement import Cluster
from isthmus.plan.ranges import check_range

if TYPE_CHECKING:
    from isthmus._topology import Machine

#: Gbit/s. Anything beyond is a mistake of the unit.
SLOWEST_LINK = 1e-4
FASTEST_LINK = 1e6
_SPEED = re.compile(r"(\d+(?:\.\d+)?(?:[eE]-?\d{1,2})?)\s*(kbit|mbit|gbit|tbit)?", re.IGNORECASE)
_IN_A_GBIT = {"kbit": 1e6, "mbit": 1e3, "gbit": 1.0, "tbit": 1e-3}
#: Where every parameter is trained.
FORWARD_SHARE = 1 / 3
#: Of FSDP2's reduce-scatters, as `isthmus.prepare` sets them on torch 2.13 and later. torch's own default is 1.
INPUT_BUFFERS = 2
#: Of one group that are under way on a GPU: kInTurns in src/communicator/run/scratch.h.
ALL_REDUCES = 2


def parse_speed_gbit_s(text: str, what: str) -> float:
    """The Gbit/s that "25gbit", "200mbit" or "25" names. ValueError: what, the text, and the accepted form."""
    match = _SPEED.fullmatch(text.strip())
    speed = float(match[1]) / _IN_A_GBIT[(match[2] or "gbit").lower()] if match else 0.0
    if not SLOWEST_LINK <= speed <= FASTEST_LINK:
        raise ValueError(f"{what} '{text}': expected a number and kbit, mbit, gbit or tbit, from 100kbit to 1000tbit")
    return speed


@dataclass(frozen=True)
class Links:
    """Speeds in one direction, and the latency of a round of messages.

    inter_gbit_s: what one node sends to others, over all its NICs. intra_gbit_s: what one rank sends within its node.
    """

    inter_gbit_s: float
    intra_gbit_s: float
    inter_latency_us: float = 20.0
    intra_latency_us: float = 5.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            low, high = (SLOWEST_LINK, FASTEST_LINK) if name.endswith("gbit_s") else (0, 1e6)
            check_range(name, value, low, high)


#: Used where nothing else is known. Speeds have no default.
_DEFAULTS = {"nodes": 2, "ranks_per_node": 8, "inter_latency_us": 20.0, "intra_latency_us": 5.0}
#: A source, and facts by the names of `Cluster`'s and `Links`' fields; None: not known.
Facts = tuple[str, Mapping[str, float | None]]


def of_machine(machine: Machine, ranks_per_node: int | None) -> Facts:
    """Nodes of such machines: all rails at the speed of the slowest, and the slowest way between two of its GPUs."""
    facts = machine.facts
    num_ranks = ranks_per_node or len(facts["gpus"]) or None
    rail_gbit_s = slowest(rail["speed_gbit_s"] for rail in machine.rails(num_ranks)[0])
    gpus = {f"GPU{gpu['index']}" for gpu in facts["gpus"][:num_ranks]}
    return f"{facts['name']} ({facts['source']})", {
        "ranks_per_node": num_ranks,
        "inter_gbit_s": None if rail_gbit_s is None else rail_gbit_s * (num_ranks or 1),
        "intra_gbit_s": slowest(link["speed_gbit_s"] for link in facts["links"] if {link["a"], link["b"]} <= gpus),
    }


def of_islands(machine: Machine) -> Facts:
    """The islands of one such machine as nodes, and what their GPUs send to each other at most.

    Raises ValueError where they make no two tiers.
    """
    facts, islands = machine.facts, machine.islands
    sizes = [len(island) for island in islands["gpus"]]
    if why := misfit(sizes) if sum(sizes) > 1 else "it has no two GPUs":
        raise ValueError(
            f"--islands: {facts['name']}: {why}: if each GPU is to be a node, give --nodes, --ranks-per-node 1, --inter"
        )
    together = [frozenset(gpus) for gpus in islands["gpus"]]
    inside = [link["speed_gbit_s"] for link in facts["links"] if any({link["a"], link["b"]} <= one for one in together)]
    return f"{facts['name']} ({facts['source']}), islands by {islands['by']}", {
        "nodes": len(sizes),
        "ranks_per_node": sizes[0],
        "inter_gbit_s": None if islands["gbit_s"] is None else islands["gbit_s"] * sizes[0],
        "intra_gbit_s": slowest(inside),
    }


#: Machines that many have, from their makers' and clouds' pages: ranks of a node, what a node and what a rank sends.
OWNED = {
    "8gpu-pcie": (4, 252.0, 252.0),  # one box as two nodes: a switch of PCIe 4.0 x16 for each four
    "dgx-spark": (1, 200.0, None),
    "a3-highgpu-1g": (1, 25.0, None),
    "a3-highgpu-2g": (2, 50.0, 3600.0),
    "a3-highgpu-4g": (4, 100.0, 3600.0),
    "p5.4xlarge": (1, 100.0, None),
}


def of_owned(name: str) -> Facts:
    """A machine of `OWNED`."""
    return name, dict(zip(("ranks_per_node", "inter_gbit_s", "intra_gbit_s"), OWNED[name], strict=True))


def slowest(speeds: Iterable[float | None]) -> float | None:
    """The least; None where one is unknown, or there is none."""
    every = list(speeds)
    known = [speed for speed in every if speed is not None]
    return min(known, default=None) if len(known) == len(every) else None


def resolve(options: Facts, machine: Facts) -> tuple[Cluster, Links, Mapping[str, str]]:
    """The cluster, its links, and the source of each fact by its name.

    Options come before the machine, the machine before defaults. ValueError: a speed is missing.
    """
    values: dict[str, float] = {}
    sources: dict[str, str] = {}
    for source, facts in (("default", _DEFAULTS), machine, options):
        known = {name: value for name, value in facts.items() if value is not None}
        values |= known
        sources |= dict.fromkeys(known, source)
    cluster = Cluster(int(values.pop("nodes")), int(values.pop("ranks_per_node")))
    for name, where, is_needed in (
        ("inter_gbit_s", "between nodes", cluster.nodes > 1),
        ("intra_gbit_s", "within a node", cluster.ranks_per_node > 1),
    ):
        if name not in values and is_needed:
            option = f"--{name.partition('_')[0]}"
            how = f"give {option}, as `isthmus topo --measure` prints it"
            how += "" if machine[1] else ", or --machine FILE"
            raise ValueError(f"the speed of links {where} is not known ({machine[0]}): {how}")
        values.setdefault(name, FASTEST_LINK)
    return cluster, Links(**values), sources


@dataclass(frozen=True)
class CodecSpeed:
    """GB/s (10**9 bytes) of float32 elements that one rank encodes and decodes."""

    encode_gb_s: float
    decode_gb_s: float


@dataclass(frozen=True)
class CodecSpeeds:
    """The speeds of each codec, by its name, and where the figures come from."""

    by_codec: Mapping[str, CodecSpeed]
    source: str


#: docs/quant.md, "Speed on a CPU": 64 MiB of float32 on one core with AVX2, where memcpy has 10.5 GB/s. tagc
#: at 10x, quant with 4 bits. A test compares pages and figures.
_MEASURED_CPU = {
    "none": CodecSpeed(5.78, 5.09),
    "tagc": CodecSpeed(2.70, 5.15),
    "quant": CodecSpeed(3.57, 5.78),
    # docs/weight_updates.md at 1e-4, with AVX-512: of bfloat16, and so twice as many bytes of float32.
    "delta": CodecSpeed(1.04, 1.44),
}
_ASSUMED_NONE = CodecSpeed(1000.0, 1000.0)


def codec_speeds(text: str) -> CodecSpeeds:
    """What "cpu", "gpu", "100" or "100/150" (encode/decode, GB/s) means. ValueError names the text."""
    if text == "cpu":
        return CodecSpeeds(_MEASURED_CPU, "measured on one CPU core, with AVX2 (docs/quant.md); weights with AVX-512")
    encode, _, decode = ("100" if text == "gpu" else text).partition("/")
    try:
        speed = CodecSpeed(float(encode), float(decode or encode))
        for name, value in asdict(speed).items():
            check_range(name, value, 1e-3, 1e5)
    except ValueError as error:
        raise ValueError(f"codec speed '{text}': expected cpu, gpu, or GB/s as 100 or 100/150 ({error})") from error
    assumed = "assumed for a GPU"
    source = f"{assumed}; docs/h200.md has what an H200 took" if text == "gpu" else f"given; none: {assumed}"
    return CodecSpeeds({"none": _ASSUMED_NONE} | dict.fromkeys(("tagc", "quant", "delta"), speed), source)


#: docs/weight_updates.md, "Bits": of an element of bfloat16 that an AdamW step moves, by learning rate.
_WEIGHT_BITS = {1e-6: 0.06, 1e-5: 0.25, 1e-4: 1.02, 3e-4: 1.81, 1e-3: 3.03}


def weight_bits_at(lr: float) -> float:
    """Bits of an element that differences of weights take at a learning rate, between and beyond those measured."""
    check_range("lr", lr, 1e-7, 1e-2)
    known = sorted(_WEIGHT_BITS)
    above = min(max(1, sum(rate < lr for rate in known)), len(known) - 1)
    low, high = known[above - 1], known[above]
    share = math.log(lr / low) / math.log(high / low)
    return max(0.0, _WEIGHT_BITS[low] + share * (_WEIGHT_BITS[high] - _WEIGHT_BITS[low]))


@dataclass(frozen=True)
class Compute:
    """Seconds that a rank computes in one step, without communication, and where the figure comes from.

    forward_share: the part of them in forward passes.
    """

    seconds: float
    source: str
    forward_share: float = FORWARD_SHARE

    def __post_init__(self) -> None:
        check_range("compute seconds", self.seconds, 0, 1e6)


def forward_share(trained_share: float) -> float:
    """The part of the compute in forward passes, where so many of the parameters are trained."""
    return 1 / (2 + trained_share)


def compute_of_tokens(
    num_parameters: int, tokens: float, peak_tflops: float, mfu: float, trained_share: float = 1.0
) -> Compute:
    """From the tokens that a rank takes in one step: 6 x parameters x tokens / (peak x share of it that is used).

    Two operations forward, two backward to what came in, and two to the parameter itself if it is trained.
    """
    check_range("tokens", tokens, 1, 1e12)
    check_range("peak_tflops", peak_tflops, 1e-3, 1e6)
    check_range("mfu", mfu, 1e-3, 1)
    flops = 2 * (2 + trained_share)
    seconds = flops * num_parameters * tokens / (peak_tflops * 1e12 * mfu)
    work = f"{flops:.3g} x {num_parameters:,} parameters x {tokens:,g} tokens a rank"
    source = f"{work} / ({peak_tflops:g} TFLOP/s x {mfu:.0%})"
    return Compute(seconds, source, forward_share(trained_share))
