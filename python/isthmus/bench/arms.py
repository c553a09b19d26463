"""What is compared: the arms of the training benchmark, each over a process group of its own."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Arm:
    """One way to train. isthmus: options of the backend; None for a plain arm on Gloo."""

    name: str
    description: str
    isthmus: dict[str, str] | None = None
    #: Sharded within a node and replicated across nodes; else sharded over all ranks.
    hybrid_sharded: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether it does without Isthmus."""
        return self.isthmus is None

    @property
    def is_compressed(self) -> bool:
        """Whether it compresses, in two tiers: what Isthmus is for."""
        return self.isthmus == _COMPRESSED


_EXACT = {"codec": "none", "tiers": "two", "units": "*"}
_COMPRESSED = {"codec": "tagc", "tiers": "two", "units": "*"}
_COMPRESSED_FLAT = {"codec": "tagc", "tiers": "flat", "units": "*"}

ARMS = {
    arm.name: arm
    for arm in (
        Arm("fsdp", "FSDP2 on Gloo, sharded over all ranks"),
        Arm("hsdp", "FSDP2 on Gloo, sharded in the node, replicated across nodes", hybrid_sharded=True),
        Arm("none", "as fsdp, on Isthmus: two tiers, exact", _EXACT),
        Arm("flat-tagc", "as fsdp, on Isthmus: TAGC over all ranks in one tier, as in the paper", _COMPRESSED_FLAT),
        Arm("tagc", "as fsdp, on Isthmus: two tiers, TAGC between nodes only", _COMPRESSED),
        Arm("hsdp-none", "as hsdp, on Isthmus, exact", _EXACT, hybrid_sharded=True),
        Arm("hsdp-tagc", "as hsdp, on Isthmus: TAGC in the all-reduce between nodes", _COMPRESSED, hybrid_sharded=True),
    )
}


def arms_named(names: str) -> list[Arm]:
    """The arms in a comma-separated list, in its order. Raises ValueError naming what is unknown or named twice."""
    chosen = [name.strip() for name in names.split(",") if name.strip()]
    for name in chosen:
        if name not in ARMS:
            raise ValueError(f"arm '{name}': expected some of {', '.join(ARMS)}")
        if chosen.count(name) > 1:
            raise ValueError(f"arm '{name}' is named twice")
    if not chosen:
        raise ValueError(f"no arms: expected some of {', '.join(ARMS)}")
    return [ARMS[name] for name in chosen]
