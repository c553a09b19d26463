"""Arguments of a training benchmark with their ranges, passed to the ranks as they are."""

from dataclasses import dataclass, replace
from typing import ClassVar

from isthmus.benchmarks.common.options import check_ranges, option
from isthmus.benchmarks.common.shape import DTYPES, ModelShape
from isthmus.benchmarks.here.config import HereConfig
from isthmus.benchmarks.simulate.network import parse_link_rate
from isthmus.plan.ranges import check_choice, check_names
from isthmus.plan.strategies import ACCUMULATING, ARMS, check_deferred

#: What is compared unless something else is asked for.
DEFAULT_ARMS = (
    *("fsdp", "fsdp-node", "hsdp", "none", "flat-tagc", "tagc"),
    *("quant", "quant-node", "full", "hsdp-none", "hsdp-quant"),
)
#: The same on GPUs, whose ranks are few: those that somebody with GPUs has to choose from, and the paper's.
GPU_ARMS = ("fsdp", "hsdp", "flat-tagc", "tagc", "quant", "full", "hsdp-quant")
#: On islands of GPUs, where people train with DDP, too.
ISLAND_ARMS = ("ddp", "ddp-bf16", "ddp-quant", "fsdp", "hsdp", "quant", "full", "hsdp-quant")

_RANGES = {
    "steps": (2, 100_000),
    "timed_steps": (1, 100_000),
    "audited_steps": (1, 100),
    "sequences": (1, 4096),
    "micro_batches": (1, 4096),
    "validation_sequences": (1, 65_536),
}


@dataclass(frozen=True)
class TrainingConfig(HereConfig):
    """Arguments of `isthmus bench training`. Raises ValueError naming field, value and range."""

    islands: bool = option(  # type: ignore[misc]  # of other benchmarks a constant
        False,
        "On this machine's GPUs over the links that they have: nodes are its islands, or as ISTHMUS_NODES says. "
        "Nothing is simulated.",
    )
    device: str = option("auto", "cpu or cuda.", show_default="cuda where torch sees GPUs, else cpu")
    ranks_per_node: int = option(
        2,
        "Processes on each node. Ranks take GPUs in order, and share them where there are fewer.",
        only="simulated",
        show_default="2; on GPUs as many as make one rank a GPU, at least 1",
    )
    quick: bool = option(False, "Few steps: a check, not a measurement.")
    arms: tuple[str, ...] = option(
        DEFAULT_ARMS,
        "Which arms, in this order. With micro-batches by default others, both ways.",
        on_gpu=GPU_ARMS,
    )
    links: tuple[str, ...] = option(
        ("200mbit", "50mbit"),
        "Rate of every node's link; repeatable.",
        name="link",
        only="simulated",
        on_gpu=("10gbit", "25gbit"),
    )
    steps: int = option(30, "Steps of each arm without a limit on the link, for the loss; with --here they are timed.")
    timed_steps: int = option(6, "Timed steps of each arm at each link rate.", only="simulated")
    audited_steps: int = option(2, "Steps of each arm that count each collective's bytes.")
    micro_batches: int = option(
        1, "Parts of each rank's sequences. With several, arms reduce gradients in each, or (-last) in the last alone."
    )
    dtype: str = option("bf16", "Parameters and reduction: bf16 or fp32.")
    width: int = option(ModelShape.width, "Width of the model, a multiple of 64.", on_gpu=1024)
    num_layers: int = option(ModelShape.num_layers, "Transformer blocks.", name="layers", on_gpu=12)
    context: int = option(ModelShape.context, "Bytes in a sequence.", on_gpu=1024)
    sequences: int = option(4, "Sequences of each rank in a step.", on_gpu=8)
    validation_sequences: int = 32
    # Of .003, .0015 and .00075 the best for the exact path of the CPU's model; of the GPU's what GPTs of its size take.
    lr: float = option(1.5e-3, "Peak learning rate of AdamW.", on_gpu=3e-4)
    seed: int = option(1, "Seed of weights and batches, the same for all arms.")
    text: tuple[str, ...] = option(
        (),
        "Text to train on; repeatable.",
        is_file=True,
        show_default="Python's standard library",
    )

    simulates_gpus: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.islands and self.here:
            raise ValueError("--islands: nodes are the launcher's with --here: leave one of them out")
        check_names("arm", self.arms, ARMS)
        check_ranges(self, _RANGES)
        if self.sequences % self.micro_batches:
            raise ValueError(
                f"micro_batches {self.micro_batches}: expected what divides the {self.sequences} sequences of a rank"
            )
        check_deferred("arm", self.arms, self.micro_batches)
        _ = self.shape
        check_choice("dtype", self.dtype, DTYPES)
        if not 0 < self.lr < 1:
            raise ValueError(f"lr {self.lr}: expected above 0 and below 1")
        for link in self.links:
            parse_link_rate(link)

    def on_device(self) -> "TrainingConfig":
        """The same with defaults for the device, and few steps if it shall be quick."""
        config = self
        if self.micro_batches > 1 and self.is_default("arms"):
            config = replace(config, arms=ACCUMULATING)
        elif self.islands and self.is_default("arms"):
            config = replace(config, arms=ISLAND_ARMS)
        config = config.with_gpu_defaults() if self.device == "cuda" else config
        if not self.quick:
            return config
        slowest = min(config.links, key=parse_link_rate, default="")
        return replace(
            config,
            steps=min(config.steps, 12),
            timed_steps=min(config.timed_steps, 3),
            audited_steps=1,
            validation_sequences=8,
            links=(slowest,) if slowest and self.is_default("links") else config.links,
        )

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.nodes * self.ranks_per_node

    @property
    def shape(self) -> ModelShape:
        """Size of the model."""
        return ModelShape(self.width, self.num_layers, self.context)
