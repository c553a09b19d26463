"""Predictions against counters: a training benchmark's report beside predictions from placement alone.

The prediction takes only the arguments and the options of its groups from the run's records; of DDP also the sizes of
its buckets, which must hold the model.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch
from rich.console import Console

from isthmus.benchmarks.common.model import ByteGpt
from isthmus.benchmarks.common.recorder import COMMUNICATION_PHASES, PHASE_OF_KIND
from isthmus.benchmarks.common.stage import plain_backend
from isthmus.benchmarks.training.config import TrainingConfig
from isthmus.model.layout import Parameter
from isthmus.plan.packets import WireOptions
from isthmus.plan.placement import Cluster, ElementBytes
from isthmus.plan.report import figures_table
from isthmus.plan.step import Setting, StepPlan
from isthmus.plan.strategies import ARMS, DDP_BF16, strategies_named
from isthmus.plan.units import Unit, units_of
from isthmus.plan.volumes import Collective, sent_bytes, world_formula

_WEIGHTS = "all_gather"
#: An interface counts headers, acknowledgements and control traffic on top of the payload: up to this share, and in a
#: micro-batch so many bytes of messages hardly longer than their headers, as gathers of unchanged weights send.
_MOST_SHARE = 0.05
_SMALL_MESSAGES_BYTES = 8192

#: What a collective is: kind, ranks in its group, elements, bytes of each.
Signature = tuple[str, int, int, int]


@dataclass(frozen=True)
class Predicted:
    """A step of an arm, summed over all ranks: its collectives, bytes between nodes, and those that Isthmus counts.

    deferred_bytes: gradients that a rank keeps until the last micro-batch.
    """

    collectives: Counter[Signature]
    bytes_by_phase: dict[str, int]
    counted_by_phase: dict[str, int]
    deferred_bytes: int


def predict(
    config: TrainingConfig, arm: str, options: Mapping[str, Any] | None, buckets: Sequence[int] = ()
) -> Predicted:
    """The predicted step of an arm of the training benchmark. options: of its groups; None: on the ordinary backend.

    buckets: elements of what DDP reduces at once. Where they do not hold the model, its units are taken for them.
    """
    name, strategy = arm, ARMS[arm]
    reduce_dtype = config.dtype
    if strategy.is_ddp:
        reduce_dtype, name = ("bf16", arm.replace(DDP_BF16.name, "ddp")) if DDP_BF16.name in arm else ("fp32", arm)
    cluster = Cluster(config.nodes, config.ranks_per_node)
    with torch.device("meta"):
        model = units_of(ByteGpt(config.shape))
    if strategy.is_ddp and sum(buckets) == model.num_parameters:
        units = tuple(Unit(f"bucket {n}", (Parameter("all", (size,)),), n == 0) for n, size in enumerate(buckets))
        model = replace(model, units=units)
    setting = Setting(
        model=model,
        cluster=cluster,
        world=world_formula(plain_backend(config.device), config.ranks_per_node),
        element_bytes=ElementBytes.of(config.dtype, reduce_dtype),
        micro_batches=config.micro_batches,
    )
    wire = WireOptions() if options is None else replace(WireOptions.of(options), weight_bits=0)
    (strategy,) = strategies_named([name], wire)
    plan = StepPlan(setting, strategy)
    formula = strategy.formula(setting.world)
    by_phase, counted = dict.fromkeys(COMMUNICATION_PHASES, 0), dict.fromkeys(COMMUNICATION_PHASES, 0)
    for operation, count in plan.operations.items():
        phase = PHASE_OF_KIND[operation.call.kind]
        for rank in range(cluster.world_size):
            num_bytes, counted_bytes = sent_bytes(formula(operation.on(rank, cluster), rank))
            by_phase[phase] += count * num_bytes
            counted[phase] += count * counted_bytes
    signatures = Counter(_signature(operation.call) for operation in plan.operations.elements())
    return Predicted(signatures, by_phase, counted, plan.memory.deferred)


def _signature(call: Collective) -> Signature:
    return str(call.kind), len(call.ranks), call.num_elements, call.element_bytes


def check_arm(
    config: TrainingConfig, arm: str, options: Mapping[str, Any] | None, steps: list[dict[str, Any]]
) -> dict[str, Any]:
    """An arm's prediction beside the counters of its recorded steps, some of which are audited, as plain values.

    Each audited step must agree. predicted: of a step. collectives_equal: whether they are the same ones; None: the
    steps do not hold them. payload_bytes: that of the transports, in all, which must be equal to the byte in each phase
    (payload_equal); None for plain arms. link_bytes: a mean over audited steps; None where nobody counted.
    weight_packet_bytes: the same mean of what the run itself says of its packets of weights, whose sizes nothing
    predicts: links carry them, too, and protocols add their share to them. link_over_expected: the share by which links
    sent more than both; None where nobody counted, or nothing should be sent. link_is_near: whether that is no more
    than protocols add. holds: whether nothing contradicts the prediction.
    """
    audited = [step for step in steps if step["kind"] == "audited"]
    weight_packets = [step.get("weight_packet_bytes", 0) for step in audited]
    payloads = [
        step["payload_bytes"] | {_WEIGHTS: step["payload_bytes"][_WEIGHTS] - packets}
        for step, packets in zip(audited, weight_packets, strict=True)
        if "payload_bytes" in step
    ]
    listed = [step["collectives"] for step in audited if "collectives" in step]
    buckets: list[int] = []
    if ARMS[arm].is_ddp and listed:
        buckets = [call["num_elements"] for call in listed[-1]]
        buckets = buckets[: len(buckets) // (1 if ARMS[arm].defers else config.micro_batches)]
    predicted = predict(config, arm, options, buckets)
    links = [sum(step["audited_link_bytes"].values()) for step in audited if "audited_link_bytes" in step]
    link_bytes, packet_bytes = fmean(links) if links else None, fmean(weight_packets)
    expected = sum(predicted.bytes_by_phase.values()) + packet_bytes
    most_over = _MOST_SHARE * expected + _SMALL_MESSAGES_BYTES * config.micro_batches
    link_is_near = link_bytes is None or abs(link_bytes - expected) <= most_over
    collectives_equal = all(_signatures(calls) == predicted.collectives for calls in listed) if listed else None
    payload_equal = all(payload == predicted.counted_by_phase for payload in payloads) if payloads else None
    return {
        "arm": arm,
        "predicted": {
            "num_collectives": predicted.collectives.total(),
            "bytes_by_phase": predicted.bytes_by_phase,
            "counted_by_phase": predicted.counted_by_phase,
            "deferred_bytes": predicted.deferred_bytes,
        },
        "collectives_equal": collectives_equal,
        "payload_bytes": sum(payloads[0].values()) if payloads else None,
        "payload_equal": payload_equal,
        "link_bytes": link_bytes,
        "weight_packet_bytes": packet_bytes,
        "micro_batches": config.micro_batches,
        "link_over_expected": link_bytes / expected - 1 if link_bytes is not None and expected else None,
        "link_is_near": link_is_near,
        "holds": collectives_equal is not False and payload_equal is not False and link_is_near,
    }


def _signatures(calls: list[dict[str, Any]]) -> Counter[Signature]:
    return Counter((call["kind"], call["num_ranks"], call["num_elements"], call["element_bytes"]) for call in calls)


def print_checks(checks: Iterable[Mapping[str, Any]], console: Console) -> None:
    """Print predictions beside what transports and links counted; bytes are sums over all nodes."""
    columns = ["collectives", "bytes\npredicted", "of it\nIsthmus's", "transports\ncounted", "links,\nover it"]
    table = figures_table("arm", "A step: predicted from placement, and counted in a real run", columns)
    for check in checks:
        predicted = check["predicted"]
        collectives = f"{predicted['num_collectives']} {_agreement(check['collectives_equal'])}"
        ours = counted = "-"
        if check["payload_bytes"] is not None:
            ours = f"{sum(predicted['counted_by_phase'].values()):,}"
            counted = f"{check['payload_bytes']:,} {_agreement(check['payload_equal'])}"
        num_bytes = f"{sum(predicted['bytes_by_phase'].values()):,}"
        table.add_row(check["arm"], collectives, num_bytes, ours, counted, _over(check))
    console.print(table)


def _agreement(agrees: bool | None) -> str:
    return "" if agrees is None else "equal" if agrees else "[red]differ[/red]"


def _over(check: Mapping[str, Any]) -> str:
    share = check["link_over_expected"]
    if share is None:
        return "-"
    return f"{share:+.1%}" if check["link_is_near"] else f"[red]{share:+.1%} (!)[/red]"
