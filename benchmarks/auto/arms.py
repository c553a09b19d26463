"""What `isthmus bench auto` compares: plain FSDP, every fixed codec, and auto."""

from collections.abc import Mapping
from types import MappingProxyType

from isthmus.bench.arms import Arm

_BUDGET = 0.02
_ANY_ERROR = 1.0


def _arm(name: str, description: str, **options: str) -> Arm:
    return Arm(name, description, {"units": "*", **options})


#: Arms by name. Those with the same budget are compared with each other.
AUTO_ARMS: Mapping[str, Arm] = MappingProxyType(
    {
        arm.name: arm
        for arm in (
            Arm("fsdp", "FSDP2 on Gloo, sharded over all ranks"),
            _arm("none", "two tiers, exact", codec="none"),
            *(_arm(f"quant{bits}", f"quant, {bits} bit", codec="quant", bits=str(bits)) for bits in (8, 4, 3, 2, 1)),
            _arm("sparse", "sparse, 1.25% of the elements", codec="sparse"),
            _arm("tagc", "tagc, 1.25% of the elements, 10x", codec="tagc"),
            _arm("auto", f"auto, error budget {_BUDGET} (the default)", codec="auto"),
            _arm("auto-any", "auto, any error", codec="auto", error_budget=str(_ANY_ERROR)),
        )
    }
)

#: Which arms each arm of auto could have chosen within its budget.
RIVALS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "auto": ("fsdp", "none", "quant8", "quant4"),
        "auto-any": tuple(name for name in AUTO_ARMS if not name.startswith("auto")),
    }
)


def auto_arms_named(names: tuple[str, ...]) -> list[Arm]:
    """The arms of these names. Raises ValueError naming what is unknown or named twice."""
    for name in names:
        if name not in AUTO_ARMS:
            raise ValueError(f"arm '{name}': expected some of {', '.join(AUTO_ARMS)}")
        if names.count(name) > 1:
            raise ValueError(f"arm '{name}' is named twice")
    if not any(name in RIVALS for name in names) or not any(name not in RIVALS for name in names):
        raise ValueError(
            f"arms {', '.join(names)}: expected one of {', '.join(RIVALS)}, and another to compare it with"
        )
    return [AUTO_ARMS[name] for name in names]
