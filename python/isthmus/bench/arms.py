"""What is compared: the arms of the training benchmark, each over a process group of its own."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Arm:
    """One way to train. isthmus: options of the backend; None for a plain arm on Gloo."""

    name: str
    description: str
    isthmus: dict[str, str] | None = None
    #: Sharded within a node and replicated across nodes.
    hybrid_sharded: bool = False


def _options(codec: str, tiers: str) -> dict[str, str]:
    return {"codec": codec, "tiers": tiers, "units": "*"}


ARMS = {
    arm.name: arm
    for arm in (
        Arm("fsdp", "FSDP2 on Gloo, sharded over all ranks"),
        Arm("hsdp", "FSDP2 on Gloo, sharded in the node, replicated across nodes", hybrid_sharded=True),
        Arm("none", "Isthmus, two tiers, exact", _options("none", "two")),
        Arm("flat-tagc", "Isthmus, TAGC over all ranks in one tier, as in the paper", _options("tagc", "flat")),
        Arm("tagc", "Isthmus, two tiers, TAGC between nodes only", _options("tagc", "two")),
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
