"""The arms of `isthmus bench auto`: plain FSDP, every fixed codec, and auto."""

from collections.abc import Mapping
from types import MappingProxyType

from isthmus.plan.ranges import check_names


def _on_isthmus(**options: str) -> Mapping[str, str]:
    return MappingProxyType({"units": "*", **options})


#: Options of Isthmus by the arm's name; None: FSDP2 on Gloo, sharded over all ranks. Codecs have their defaults but for
#: what is named here. Arms with the same error budget are compared with each other.
AUTO_ARMS: Mapping[str, Mapping[str, str] | None] = MappingProxyType(
    {
        "fsdp": None,
        "none": _on_isthmus(codec="none"),
        **{f"quant{bits}": _on_isthmus(codec="quant", bits=str(bits)) for bits in (8, 4, 3, 2, 1)},
        "sparse": _on_isthmus(codec="sparse"),
        "tagc": _on_isthmus(codec="tagc"),
        "auto": _on_isthmus(codec="auto"),
        "auto-any": _on_isthmus(codec="auto", error_budget="1.0"),  # any error
        "full": _on_isthmus(codec="quant", bits="4", weights="delta"),
        "auto-full": _on_isthmus(codec="auto", weights="delta"),
    }
)
DEFAULT_AUTO_ARMS = tuple(name for name in AUTO_ARMS if not name.endswith("full"))

#: Which arms each arm of auto could have chosen within its budget.
RIVALS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "auto": ("fsdp", "none", "quant8", "quant4"),
        "auto-any": tuple(name for name in DEFAULT_AUTO_ARMS if not name.startswith("auto")),
        "auto-full": ("fsdp", "none", "quant8", "quant4", "full"),
    }
)


def check_auto_arms(names: tuple[str, ...]) -> None:
    """Raise ValueError naming what is unknown or named twice, or where there is nothing to compare."""
    check_names("arm", names, AUTO_ARMS)
    if not any(name in RIVALS for name in names) or not any(name not in RIVALS for name in names):
        raise ValueError(
            f"arms {', '.join(names)}: expected one of {', '.join(RIVALS)}, and another to compare it with"
        )
