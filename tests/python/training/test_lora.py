"""LoRA: adapters in the modules that PEFT makes, over FSDP2 and HSDP. What crosses, and what must stay zero."""

import math
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import isthmus
from isthmus.benchmarks.common.isthmus_group import new_group
from isthmus.plan.packets import WireOptions
from isthmus.plan.placement import Cluster, ElementBytes, Phase
from isthmus.plan.step import Setting, StepPlan
from isthmus.plan.strategies import strategies_named
from isthmus.plan.units import units_of
from isthmus.plan.volumes import world_formula
from support.checks import Table
from support.families import gathered, same_on_all_ranks
from support.limits import OPERATION_S

RAILS, NODES = [[0, 2], [1, 3]], [[0, 1], [2, 3]]
LAYERS = 3
HEADER_BYTES = 64
#: Elements in, elements out, and rank of adapters. 64 divides each rank's and owner's parts of them, and does not.
EVEN, ODD = (256, 512, 8), (72, 104, 5)
table = Table()


class Linear(nn.Module):
    """peft.tuners.lora.Linear: names, types and beginnings are the same."""

    def __init__(self, in_features: int, out_features: int, rank: int) -> None:
        super().__init__()
        self.base_layer = nn.Linear(in_features, out_features, bias=False, dtype=torch.bfloat16)
        self.base_layer.requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(in_features, rank, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(rank, out_features, bias=False)})
        nn.init.kaiming_uniform_(self.lora_A["default"].weight, a=math.sqrt(5))
        nn.init.zeros_(self.lora_B["default"].weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        adapted = self.lora_B["default"](self.lora_A["default"](x.to(self.lora_A["default"].weight.dtype)))
        return (self.base_layer(x) + 2 * adapted).to(x.dtype)


class Model(nn.Module):
    def __init__(self, shape: tuple[int, int, int]) -> None:
        super().__init__()
        there, back, rank = shape
        self.layers = nn.ModuleList(
            nn.Sequential(Linear(there, back, rank), nn.ReLU(), Linear(back, there, rank)) for _ in range(LAYERS)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


class Tuning:
    """A model that is tuned, and its group whose ranks are on different nodes."""

    def __init__(
        self, layout: str, shape: tuple[int, int, int], gathered_in: torch.dtype | None = torch.bfloat16, **options: Any
    ) -> None:
        own, timeout = isthmus.Options(min_elements=0, **options), timedelta(seconds=OPERATION_S)
        if layout == "hsdp":
            groups = [new_group("isthmus", timeout, ranks, own) for ranks in (RAILS, NODES)]
            mesh = DeviceMesh.from_group(groups, "cpu", mesh=NODES, mesh_dim_names=("replicate", "shard"))
            self.group = groups[0]
        else:
            self.group = new_group("isthmus", timeout, None, own)
            mesh = DeviceMesh.from_group(self.group, "cpu")
        torch.manual_seed(1)
        self.model = Model(shape)
        self.planned = units_of(self.model)
        policy = MixedPrecisionPolicy(param_dtype=gathered_in, reduce_dtype=torch.float32)
        for module in (*self.model.layers, self.model):
            fully_shard(module, mesh=mesh, mp_policy=policy)
        trained = [weight for weight in self.model.parameters() if weight.requires_grad]
        assert {weight.dtype for weight in trained} == {torch.float32} and len(trained) == 4 * LAYERS
        self.optimizer = torch.optim.AdamW(trained, lr=1e-3, weight_decay=0)
        self.width = shape[0]

    def local(self, adapter: str) -> list[Any]:
        return [weight for name, weight in self.model.named_parameters() if f"lora_{adapter}" in name]

    def backward(self, step: int) -> None:
        torch.manual_seed(10 * step + dist.get_rank())
        self.model(torch.randn(16, self.width, dtype=torch.bfloat16)).float().square().mean().backward()

    def step(self, step: int) -> None:
        self.backward(step)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def sent(self, collective: str) -> int:
        sent: int = isthmus.stats(self.group)["collectives"][collective]["inter"]["inter_node_sent_bytes"]
        return sent


def zeros_after_first_step(tuning: Tuning) -> tuple[bool, bool]:
    """Whether the gradients of A are zero on all ranks in the first step, and A keeps its bits; and the same of B."""
    before = {adapter: [weight.to_local().clone() for weight in tuning.local(adapter)] for adapter in "AB"}
    tuning.backward(0)
    zero = {adapter: not any(weight.grad.to_local().any() for weight in tuning.local(adapter)) for adapter in "AB"}
    tuning.optimizer.step()
    tuning.optimizer.zero_grad()
    for adapter, weights in before.items():
        kept = all(torch.equal(old, new.to_local()) for old, new in zip(weights, tuning.local(adapter), strict=True))
        assert zero[adapter] == kept
    return all(gathered(zero["A"])), any(gathered(zero["B"]))


@table
def gradients_of_a_stay_zero_while_b_is_zero() -> None:
    for layout in ("fsdp", "hsdp"):
        for codec in ({}, {"bits": 2}, {"codec": "tagc"}):
            tuning = Tuning(layout, EVEN, **codec)
            assert zeros_after_first_step(tuning) == (True, False), (layout, codec)
            stats = isthmus.stats(tuning.group)
            assert (stats["compressed_calls"], stats["exact_calls"]) == (LAYERS, {}), (layout, codec)
            tuning.backward(1)
            moves = any(gathered(any(weight.grad.to_local().any() for weight in tuning.local("A"))))
            assert moves or codec == {"codec": "tagc"}  # whose few values are B's


@table
def where_64_does_not_divide_the_parts_a_first_exact_step_keeps_them_zero() -> None:
    for layout in ("fsdp", "hsdp"):
        assert zeros_after_first_step(Tuning(layout, ODD)) == (False, False), layout
        tuning = Tuning(layout, ODD, dense_steps=1)
        assert zeros_after_first_step(tuning) == (True, False), layout
        before = isthmus.stats(tuning.group)["compressed_calls"]
        tuning.step(1)
        assert isthmus.stats(tuning.group)["compressed_calls"] == before + LAYERS


def planned(tuning: Tuning, strategy: str) -> dict[Phase, int]:
    """What `isthmus plan` says that this rank sends: half of what its node does. No bits of weights that change."""
    (chosen,) = strategies_named([strategy], WireOptions(min_elements=0, weight_bits=0))
    setting = Setting(tuning.planned, Cluster(2, 2), world_formula("gloo", 2), ElementBytes.of("bf16", "fp32"))
    return {phase: sent // 2 for phase, sent in StepPlan(setting, chosen).node_bytes.items()}


@table
def adapters_gradients_cross_and_nothing_else_over_hsdp() -> None:
    tuning = Tuning("hsdp", ODD)
    tuning.step(0)
    assert tuning.sent("all_reduce") == planned(tuning, "hsdp-quant")[Phase.REDUCTION]
    assert tuning.sent("all_gather") == tuning.sent("reduce_scatter") == 0
    for adapter in "AB":
        assert all(same_on_all_ranks(weight.full_tensor()) for weight in tuning.local(adapter))


@table
def over_fsdp_the_frozen_base_crosses_twice_a_step_or_as_differences_once() -> None:
    plain, delta = Tuning("fsdp", EVEN), Tuning("fsdp", EVEN, weights="delta")
    whole = planned(plain, "quant")
    for step in range(3):
        before, delta_before = (tuning.sent("all_gather") for tuning in (plain, delta))
        for tuning in (plain, delta):
            tuning.step(step)
        assert plain.sent("all_gather") - before == whole[Phase.FORWARD] + whole[Phase.BACKWARD]
        sent = delta.sent("all_gather") - delta_before
        headers = 2 * LAYERS * HEADER_BYTES
        if step == 0:
            assert sent == whole[Phase.FORWARD] + headers
        else:
            assert headers < sent < whole[Phase.FORWARD] / 10, (sent, whole)
    assert plain.sent("reduce_scatter") == 3 * whole[Phase.REDUCTION]


@table
def gathered_as_bytes_of_two_types_the_frozen_base_crosses_once_too() -> None:
    """Without a common type; but the blocks that hold adapters cross whole."""
    tuning = Tuning("fsdp", EVEN, gathered_in=None, weights="delta")
    tuning.step(0)
    first = tuning.sent("all_gather")
    tuning.step(1)
    assert tuning.sent("all_gather") - first < first / 4


test_lora = table.in_world(env={"ISTHMUS_NODES": "2x2"})
