"""The rows of the conformance table: which calls are made on Isthmus and on Gloo, as data.

A row is one collective with one value on each axis. Not every combination is tried: a row differs from its
collective's plainest one on at most two axes, so every *pair* of values of two axes meets in some row.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import combinations, product

# The first value of every axis is the plainest.
TAKEN_DTYPES = (
    "float32",
    "bfloat16",
    "float16",
    "float64",
    "int8",
    "uint8",
    "int32",
    "int64",
    "bool",
    "complex32",
    "complex64",
    "complex128",
)
# What Gloo refuses to reduce, whatever the layout: these meet only the operators.
OTHER_DTYPES = (
    "int16",
    "uint16",
    "uint32",
    "uint64",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float4_e2m1fn_x2",
)
PREMULTIPLYING = ("premul_sum", "premul_sum of a tensor")
SUMS = ("sum", "avg", *PREMULTIPLYING)
OPS = (*SUMS, "product", "min", "max", "band", "bor", "bxor")
SHAPES = ("12", "1", "0", "odd", "large", "2-D", "3-D", "scalar", "special values")
WITH_GAPS = ("strided", "large and strided", "column")
NOT_CONTIGUOUS = (*WITH_GAPS, "transposed", "channels last")
ARRANGEMENTS = (*NOT_CONTIGUOUS, "offset")
LAYOUTS = (*SHAPES, *ARRANGEMENTS, "sparse")
MODES = ("sync", "wait", "future")
GROUPS = (
    "world",
    "interleaved nodes",
    "inside a node",
    "one rank a node",
    "uneven nodes",
    "one rank",
    "mesh across nodes",
    "mesh within nodes",
    "split",
)
LABELS = ("no label", "gradient")
DEBUG = ("off", "detail")


@dataclass(frozen=True)
class Row:
    """One call. The default values are the plainest ones."""

    collective: str
    dtype: str = TAKEN_DTYPES[0]
    op: str = OPS[0]
    layout: str = LAYOUTS[0]
    mode: str = MODES[0]
    group: str = GROUPS[0]
    label: str = LABELS[0]
    debug: str = DEBUG[0]

    def __str__(self) -> str:
        plain = Row(self.collective)
        differing = [
            str(getattr(self, f.name)) for f in fields(self) if getattr(self, f.name) != getattr(plain, f.name)
        ]
        return ", ".join([self.collective, *differing])


AXES = tuple(f.name for f in fields(Row) if f.name != "collective")


@dataclass(frozen=True)
class Collective:
    """The values that one collective is tried with, beside those that all are."""

    name: str
    reduces: bool = False
    layouts: Sequence[str] = LAYOUTS
    modes: Sequence[str] = MODES
    labels: Sequence[str] = LABELS[:1]
    dtypes: Sequence[str] = TAKEN_DTYPES
    groups: Sequence[str] = GROUPS
    other_dtypes: Sequence[str] = OTHER_DTYPES
    left_out: Sequence[tuple[str, str]] = ()  # pairs of values that not both can be asked for
    asked_plainly: Sequence[str] = ()  # layouts that Gloo is not asked for: of contiguous tensors it gives the numbers

    def axis(self, name: str) -> Sequence[str]:
        return {
            "dtype": self.dtypes,
            "op": OPS if self.reduces else OPS[:1],
            "layout": self.layouts,
            "mode": self.modes,
            "group": self.groups,
            "label": self.labels,
            "debug": DEBUG,
        }[name]

    def rows(self) -> Iterator[Row]:
        plain = Row(self.name)
        seen = set()
        for pair in combinations(AXES, 2):
            for values in product(*map(self.axis, pair)):
                row = replace(plain, **dict(zip(pair, values, strict=True)))
                if row not in seen and values not in self.left_out:
                    seen.add(row)
                    yield row
        for dtype, op in product(self.other_dtypes, self.axis("op")):
            yield replace(plain, dtype=dtype, op=op)


COLLECTIVES = (
    Collective(
        "all_reduce",
        reduces=True,
        modes=(*MODES, "coalesced", "functional"),
        labels=LABELS,
        asked_plainly=WITH_GAPS,
    ),
    Collective(
        "reduce_scatter_tensor",
        reduces=True,
        layouts=(*LAYOUTS, "stacked", "aliased"),
        modes=(*MODES, "coalesced", "functional"),
        labels=LABELS,
        left_out=[("scalar", "future")],  # it has none
        asked_plainly=("scalar",),
    ),
    Collective(
        "reduce_scatter",
        reduces=True,
        layouts=(*LAYOUTS, "uneven"),
        labels=LABELS,
        left_out=[(layout, "future") for layout in NOT_CONTIGUOUS],  # it has none
        asked_plainly=NOT_CONTIGUOUS,
    ),
    Collective("reduce", reduces=True, asked_plainly=WITH_GAPS),
    Collective("all_gather", layouts=(*LAYOUTS, "uneven")),
    Collective(
        "all_gather_into_tensor",
        layouts=(*LAYOUTS, "stacked", "aliased", "large and aliased"),
        modes=(*MODES, "coalesced", "functional"),
    ),
    Collective("all_to_all", layouts=(*LAYOUTS, "uneven")),
    Collective("all_to_all_single", layouts=(*LAYOUTS, "uneven"), modes=(*MODES, "functional")),
    Collective("broadcast", modes=(*MODES, "functional"), asked_plainly=WITH_GAPS),
    Collective("gather", asked_plainly=("scalar",)),
    # Since 2.15, and not in Gloo.
    Collective("gather_single", layouts=LAYOUTS[:1], dtypes=TAKEN_DTYPES[:1], other_dtypes=()),
    Collective("scatter", asked_plainly=("scalar", *WITH_GAPS)),
    Collective(
        "send and recv",
        modes=("sync", "wait", "batched", "any source", "tags"),
        left_out=[(layout, "any source") for layout in ("0", *ARRANGEMENTS, "sparse")],
    ),
)


def is_asked_plainly(row: Row) -> bool:
    """Tell whether Gloo is asked for a row's numbers with contiguous tensors of one dimension or more instead."""
    is_copied = row.mode == "coalesced" and row.layout in WITH_GAPS  # by Gloo itself
    return not is_copied and any(
        row.collective == each.name and row.layout in each.asked_plainly for each in COLLECTIVES
    )


def scenario_rows(names: Sequence[str]) -> Iterator[Row]:
    """Whole scenarios, each of several calls: they have neither type nor layout, and run on every group."""
    for name in names:
        for group in GROUPS:
            yield Row(name, group=group)
        yield Row(name, debug="detail")


def collective_rows() -> list[Row]:
    return [row for collective in COLLECTIVES for row in collective.rows()]
