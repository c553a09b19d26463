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
        return self.isthmus is not None and self.isthmus["tiers"] == "two" and self.codec != "none"

    @property
    def codec(self) -> str:
        """Of Isthmus; "none" of plain arms."""
        return "none" if self.isthmus is None else self.isthmus["codec"]


_COMMON = {"tiers": "two", "units": "*"}
_EXACT = {"codec": "none", **_COMMON}
_TAGC = {"codec": "tagc", **_COMMON}
_FLAT_TAGC = {**_TAGC, "tiers": "flat"}
_SPARSE = {"codec": "sparse", **_COMMON}
_QUANT = {"codec": "quant", "bits": "4", **_COMMON}
_QUANT_2 = {"codec": "quant", "bits": "2", **_COMMON}

ARMS = {
    arm.name: arm
    for arm in (
        Arm("fsdp", "FSDP2 on Gloo, sharded over all ranks"),
        Arm("hsdp", "FSDP2 on Gloo, sharded in the node, replicated across nodes", hybrid_sharded=True),
        Arm("none", "as fsdp, on Isthmus: two tiers, exact", _EXACT),
        Arm("flat-tagc", "as fsdp, on Isthmus: TAGC over all ranks in one tier, as in the paper", _FLAT_TAGC),
        Arm("tagc", "as fsdp, on Isthmus: two tiers, TAGC between nodes only", _TAGC),
        Arm("sparse", "as fsdp, on Isthmus: two tiers, exact top-k of each block between nodes", _SPARSE),
        Arm("quant", "as fsdp, on Isthmus: two tiers, rotated 4-bit codes between nodes", _QUANT),
        Arm("quant2", "as quant, with 2 bits", _QUANT_2),
        Arm("hsdp-none", "as hsdp, on Isthmus, exact", _EXACT, hybrid_sharded=True),
        Arm("hsdp-tagc", "as hsdp, on Isthmus: TAGC in the all-reduce between nodes", _TAGC, hybrid_sharded=True),
        Arm("hsdp-quant", "as hsdp, on Isthmus: rotated 4-bit codes between nodes", _QUANT, hybrid_sharded=True),
        Arm("hsdp-quant2", "as hsdp-quant, with 2 bits", _QUANT_2, hybrid_sharded=True),
    )
}

#: What is compared unless something else is asked for.
DEFAULT_ARMS = ("fsdp", "hsdp", "none", "flat-tagc", "tagc", "quant", "hsdp-none", "hsdp-quant")


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
