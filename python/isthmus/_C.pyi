from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Backend as _TorchBackend
from torch._C._distributed_c10d import Store

class Error(RuntimeError): ...
class OptionError(Error, ValueError): ...
class PacketError(Error): ...
class TransportError(Error): ...

class Options(_TorchBackend.Options):
    nodes: str
    codec: str
    tiers: str
    ratio: float
    sparsity: float
    index_bits: int
    block_elements: int
    peel_rounds: int
    units: str
    gradients: str
    min_elements: int
    two_tier_all_gather: bool
    max_units: int
    log: str

    def __init__(
        self,
        *,
        nodes: str = ...,
        codec: str = ...,
        tiers: str = ...,
        ratio: float = ...,
        sparsity: float = ...,
        index_bits: int = ...,
        block_elements: int = ...,
        peel_rounds: int = ...,
        units: str = ...,
        gradients: str = ...,
        min_elements: int = ...,
        two_tier_all_gather: bool = ...,
        max_units: int = ...,
        log: str = ...,
        timeout: timedelta = ...,
    ) -> None: ...
    def __copy__(self) -> Options: ...
    def __deepcopy__(self, memo: dict[int, Any]) -> Options: ...

class Backend(_TorchBackend):
    def __init__(
        self,
        *,
        store: Store,
        rank: int,
        size: int,
        options: Options,
        node_of_rank: list[int],
        world: _TorchBackend,
        intra: _TorchBackend | None,
        inter: _TorchBackend | None,
        flat: _TorchBackend | None,
    ) -> None: ...
    @property
    def options(self) -> Options: ...
    def stats(self) -> dict[str, Any]: ...
    def reset_stats(self) -> None: ...
    def perform_nocolor_split(self, device: Any) -> None: ...

def option_fields() -> list[tuple[str, str, str, str]]: ...
def parse_nodes(text: str, world_size: int) -> list[int]: ...
def describe_nodes(node_of_rank: list[int]) -> str: ...
def set_split_function(function: Callable[[Store, int, int, Options], Backend]) -> None: ...
def shutdown_all() -> None: ...
