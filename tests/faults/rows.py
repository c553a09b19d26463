"""The fault table: what goes wrong, and what the error of every other rank has to say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from faults import injections, operations
from faults.injections import Injection

WORLD_SIZE = 4
TIMEOUT_S = 5.0
# What every rank may take beyond the timeout until its process has ended. A bound on hanging, not on speed.
GRACE_S = 5.0

DELTA = {"ISTHMUS_WEIGHTS": "delta"}


@dataclass(frozen=True)
class Row:
    """One fault. The survivors call `operation` until it fails; an empty `expected` says that it never does."""

    name: str
    operation: Callable[[], None]
    injection: Injection
    expected: tuple[str, ...]  # regular expressions, each found in every survivor's error
    faulty_rank: int = 3
    faulty_expected: tuple[str, ...] | None = None  # the same of the faulty rank's error; None: its end does not matter
    settings: Mapping[str, str] = field(default_factory=dict)  # beside the default codec
    rank_0_hosts_the_store: bool = False
    remark: str = ""  # what the errors cannot name, and why


SILENT = r"No word from rank 3: dead, stopped, or not in a collective of this group"
NO_STORE = r"The store that ranks report to did not answer: its host \(global rank 0, unless a launcher hosts it\)"
REDUCTION = r"reduce-scatter #\d+ of 65536 x Float of unit blocks\.1 failed on rank \d in phase "

ALL_REDUCTION = r"all-reduce #\d+ of 65536 x Float of unit blocks\.1 failed on rank \d in phase "
FSDP2_STEP = r"(reduce-scatter|all-gather) #\d+ of \d+ x Float( of unit \d)? failed on rank \d in phase "
GATHER = r"all-gather #\d+ of 262144 x Float( of unit root)? failed on rank \d in phase "
NO_PHASES = "an exact collective has no phases and no unit"
NOBODY_ELSE = "without the store nobody else can be named"

ROWS = [
    Row("killed while idle", operations.asynchronous_reduce_scatter, injections.die, (REDUCTION, SILENT)),
    Row(
        "killed within an exact collective",
        operations.all_reduce_with_a_future,
        injections.interpose("kill_after_bytes", 1 << 20),
        ("ALLREDUCE", SILENT),
        remark=NO_PHASES,
    ),
    Row(
        "killed with the result of an all-reduce encoded",
        operations.gradient_all_reduce,
        injections.interpose("kill_at_packet", 2),
        (ALL_REDUCTION, SILENT),
    ),
    Row(
        "killed between encode and exchange of FSDP2's gradient",
        operations.fsdp2_step,
        injections.interpose("kill_at_packet", 1),
        (FSDP2_STEP, r"reduce-scatter #\d+ of 16512 x Float of unit 2", SILENT),
    ),
    Row(
        "killed between comparing weights and telling the others",
        operations.gather_weights,
        injections.interpose("kill_at_packet", 1),
        (GATHER, SILENT),
        settings=DELTA,
    ),
    Row("killed in shutdown", operations.nothing, injections.interpose("kill_at_close", 2), ()),
    Row("leaves early", operations.reduce_scatter, injections.leave, (REDUCTION, SILENT)),
    Row("stopped in a compressed reduction", operations.reduce_scatter, injections.stop, (REDUCTION, SILENT)),
    Row(
        "another collective",
        operations.reduce_scatter,
        injections.call(operations.all_gather),
        (REDUCTION, r"rank 3 was in all-gather #\d+ of 65536 x Float"),
        faulty_expected=(r"all-gather #\d+ of 65536 x Float failed on rank 3", r"rank 0 was in reduce-scatter #\d+"),
    ),
    Row(
        "another unit",
        operations.reduce_scatter,
        injections.call(operations.reduce_scatter_of_another_unit),
        (REDUCTION, r"rank 3 was in reduce-scatter #\d+ of 65536 x Float of unit blocks\.2"),
        faulty_expected=(
            r"rank 2 of this node reduces another unit",
            r"rank 0 was in reduce-scatter #\d+ of 65536 x Float of unit blocks\.1",
        ),
    ),
    Row("store gone", operations.reduce_scatter, injections.lose_the_store, ()),
    Row(
        "store gone, then killed",
        operations.reduce_scatter,
        injections.lose_the_store_and_die,
        (REDUCTION, NO_STORE),
        remark=NOBODY_ELSE,
    ),
    Row(
        "killed, and it hosts the store",
        operations.reduce_scatter,
        injections.die,
        (REDUCTION, NO_STORE),
        faulty_rank=0,
        rank_0_hosts_the_store=True,
        remark=NOBODY_ELSE,
    ),
]
