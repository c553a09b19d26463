"""What is counted of one chain, and what follows from it."""

from __future__ import annotations

from dataclasses import dataclass

PLAIN = "nccl alone"
CODECS = ("quant", "none", "tagc")
#: Passes of decodings, and what stands between them; all others are of encodings.
DECODING = (
    *("DecodeValues", "DequantizeBlocks", "Verify"),
    *("OpenPackets", "PeelPackets", "MapValues", "clear", "copy"),
)
VALUE_BYTES = 2  # bfloat16
#: Nodes by ranks of one. The two numbers differ: by them communicators are told from each other.
MACHINES = ("2x3", "3x2")

MIB = 1 << 20
#: The buffers of a channel to one peer: 4 MiB for protocol Simple, .5 for LL and 4.7 for LL128 in pages of 2 MiB, and
#: 2 MiB for the other direction, as NCCL allocated it in https://github.com/NVIDIA/nccl/issues/1685.
CHANNEL_BYTES = 12 * MIB
#: Channels where nothing bounds them, on an H100: https://github.com/NVIDIA/nccl/issues/1685 has 32.
MOST_CHANNELS = 32


@dataclass(frozen=True)
class Launches:
    """Launches of one pass, and the bytes of pieces, packets and results that it moves; None where data decide."""

    name: str
    number: int
    read_bytes: int | None = None
    written_bytes: int | None = None

    @property
    def moved_bytes(self) -> int | None:
        """Both ways."""
        known = self.read_bytes is not None and self.written_bytes is not None
        return self.read_bytes + self.written_bytes if known else None  # type: ignore[operator]


@dataclass(frozen=True)
class Communicator:
    """A communicator of NCCL. most_ctas: multiprocessors that it may hold, hence its channels; 0: no bound."""

    size: int
    most_ctas: int

    @property
    def memory_bytes(self) -> int:
        """Its buffers for a ring, by NCCL's sizes."""
        return CHANNEL_BYTES * (self.most_ctas or MOST_CHANNELS)


@dataclass(frozen=True)
class Chain:
    """One reduce-scatter of a unit in bfloat16, in steady state.

    packet_bytes: of all packets that the rank sends to other nodes. host_us: of the calling thread. streams: that were
    made for the group: none where a group before has left its own.
    """

    nodes: str
    codec: str
    shard_elements: int
    packet_bytes: int
    launches: list[Launches]
    nccl_launches: int
    host_us: float
    streams: int
    synchronizations: int
    allocations: int
    communicators: list[Communicator]

    @property
    def num_launches(self) -> int:
        """The launches of codecs, copies and NCCL."""
        return self.nccl_launches + sum(launches.number for launches in self.launches)

    @property
    def num_foreign(self) -> int:
        """Other nodes, each of which is sent a packet."""
        return int(self.nodes.split("x")[0]) - 1

    def moved_bytes(self, *, encode: bool) -> int | None:
        """Return the bytes that encoding moves, or decoding; None where data decide."""
        moved = [one.moved_bytes for one in self.launches if (one.name not in DECODING) == encode]
        return None if None in moved else sum(filter(None, moved))

    def compulsory_bytes(self, *, encode: bool) -> int:
        """Return the bytes that must be moved once: pieces, packets, residuals; packets, own piece and shard."""
        if encode:
            residual_bytes = 2 * 4 if self.codec == "tagc" else 0
            return self.num_foreign * self.shard_elements * (VALUE_BYTES + residual_bytes) + self.packet_bytes
        return self.packet_bytes + 2 * self.shard_elements * VALUE_BYTES

    @property
    def memory_bytes(self) -> int:
        """The memory of its communicators."""
        return sum(communicator.memory_bytes for communicator in self.communicators)
