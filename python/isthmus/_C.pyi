from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import Backend as _TorchBackend
from torch._C._distributed_c10d import Store

class Error(RuntimeError): ...
class OptionError(Error, ValueError): ...
class OptionTypeError(OptionError, TypeError): ...
class PacketError(Error): ...
class TransportError(Error): ...

class Options(_TorchBackend.Options):
    nodes: str
    codec: str
    tiers: str
    inter_tier: str
    bits: int
    error_feedback: str
    sparsity: float
    ratio: float
    cell_type: str
    index_bits: int
    dense_steps: int
    segments: int
    error_interval: int
    units: str
    gradients: str
    min_elements: int
    weights: str
    replica_interval: int
    max_units: int
    device_timings: bool
    log: str

    def _without_effect(self) -> list[tuple[str, str, str]]: ...
    def __init__(
        self,
        *,
        nodes: str = ...,
        codec: str = ...,
        tiers: str = ...,
        inter_tier: str = ...,
        bits: int = ...,
        error_feedback: str = ...,
        sparsity: float = ...,
        ratio: float = ...,
        cell_type: str = ...,
        index_bits: int = ...,
        dense_steps: int = ...,
        segments: int = ...,
        error_interval: int = ...,
        units: str = ...,
        gradients: str = ...,
        min_elements: int = ...,
        weights: str = ...,
        replica_interval: int = ...,
        max_units: int = ...,
        device_timings: bool = ...,
        log: str = ...,
        timeout: timedelta = ...,
    ) -> None: ...
    def __copy__(self) -> Options: ...
    def __deepcopy__(self, memo: dict[int, Any]) -> Options: ...

class Transport:
    """A tier that is not a torch backend."""

# How many multiprocessors a tier over NCCL may occupy.
INTRA_MAX_CTAS: int
INTER_MAX_CTAS: int

class CudaParts:
    """NCCL's backends of one group, and one of Gloo along the rail, for weights as differences."""

    def __init__(
        self,
        *,
        world: _TorchBackend,
        intra: _TorchBackend | None,
        inter: _TorchBackend | None,
        gather_intra: _TorchBackend | None,
        gather_inter: _TorchBackend | None,
        host_inter: _TorchBackend | None,
    ) -> None: ...

class Backend(_TorchBackend):
    def __init__(
        self,
        *,
        store: Store,
        rank: int,
        size: int,
        options: Options,
        node_of_rank: list[int],
        node_map_source: str = ...,
        world: _TorchBackend,
        intra: _TorchBackend | None,
        inter: _TorchBackend | Transport | None,
        flat: _TorchBackend | None,
        cuda: CudaParts | None = ...,
        no_cuda: str = ...,
        covers_job: bool = ...,
    ) -> None: ...
    @property
    def options(self) -> Options: ...
    def stats(self) -> dict[str, Any]: ...
    def reset_stats(self) -> None: ...
    def perform_nocolor_split(self, device: Any) -> None: ...
    @property
    def node_of_rank(self) -> list[int]: ...
    @property
    def global_ranks(self) -> list[int]: ...
    def unit_states(self) -> list[dict[str, Any]]: ...
    def load_unit(self, state: dict[str, Any]) -> None: ...
    def clear_units(self, owners: set[int] | None = None) -> None: ...
    def scale_residuals(self, factor: float, owners: set[int] | None = None) -> None: ...
    def end_step(self, skipped: bool, factor: float = 1.0, owners: set[int] | None = None) -> None: ...
    def count_dropped(self, num_units: int) -> None: ...
    def unit_name(self, owner: int, label: str) -> str: ...
    def set_gradients(self, mode: str) -> None: ...

class Sections:
    def __init__(self, pairs: list[tuple[int, int]]) -> None: ...
    @property
    def row_elements(self) -> int: ...
    @property
    def hash(self) -> int: ...

# The version in docs/packet_format.md: where it differs, codecs send other packets.
PACKET_VERSION: int

# Why units are exact in which tensor parallelism splits some parameters and copies others.
REPLICAS: str

def codecs() -> dict[str, list[str]]: ...
def option_fields() -> list[tuple[str, str, str, str, str]]: ...
def packet_bytes(options: Options, num_elements: int, dtype: torch.dtype) -> int: ...
def parse_nodes(text: str, world_size: int) -> list[int]: ...
def describe_nodes(node_of_rank: list[int]) -> str: ...
def set_split_function(function: Callable[[Store, int, int, Options], Backend]) -> None: ...
def set_shutdown_listener(function: Callable[[str, str, dict[str, Any]], None]) -> None: ...
def set_warning_function(function: Callable[[str], None]) -> None: ...
def set_third_step_function(function: Callable[[], None]) -> None: ...
def set_fsdp_caller(
    caller: Callable[[Tensor, Tensor], tuple[tuple[str, int, str, int, Sections | None], bool, Tensor | None] | None],
) -> None: ...
def set_weights_caller(caller: Callable[[], tuple[int, str]]) -> None: ...
def forget_owner(owner: int) -> None: ...
def push_unit(
    name: str, layout: int, exact: str, owner: int = 0, sections: Sections | None = None, by_user: bool = False
) -> None: ...
def pop_unit() -> None: ...
def name_parameter(parameter: Tensor, name: str, layout: int, exact: str, owner: int = 0) -> None: ...
def shutdown_all() -> None: ...
