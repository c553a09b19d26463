"""Reductions that are recognised as gradients: what they sum to, and what they send."""

from __future__ import annotations

from dataclasses import fields

import torch
import torch.distributed as dist

import isthmus
from isthmus.plan.packets import WireOptions, piece_bytes
from python.backend import gradient_calls
from python.backend.gradients import (
    NODE_MAPS,
    WORLD_SIZE,
    Groups,
    all_reduce,
    carried_by_all_ranks,
    inputs_of_all_ranks,
    native,
    on_all_ranks,
    own_chunk,
    reduce_scatter,
    run_table,
)
from support.checks import Table
from support.tested_codecs import CODECS, LOSSY

table = Table()
table.checks |= gradient_calls.table.checks


@table
def what_every_codec_can_carry_arrives_to_the_bit(groups: Groups) -> None:
    """The whole way, without rounding that could hide anything: nodes, segments, types, operators, steps.

    Of several segments tagc holds some values back, which do not peel in so small sketches.
    """
    ops = [(dist.ReduceOp.SUM, 1.0), (dist.ReduceOp.AVG, 0.25)]
    numel = WORLD_SIZE * (3 * 4096 + 700)
    for codec, nodes in [*((codec, "2x2") for codec in LOSSY), *(("default", nodes) for nodes in NODE_MAPS)]:
        for segments in (1,) if codec == "tagc" else (1, 4):
            group = groups(nodes=nodes, segments=segments, **CODECS[codec])
            for dtype in (torch.float32, torch.bfloat16, torch.float16):
                for step, (op, scale) in enumerate(2 * ops):
                    sources = [source.to(dtype) for source in carried_by_all_ranks(numel, step)]
                    expected = (scale * sum(source.double() for source in sources)).to(dtype)
                    shard = reduce_scatter(group, sources[dist.get_rank()], op, unit=f"scatter {scale}")
                    whole = all_reduce(group, sources[dist.get_rank()], op, unit=f"all {scale}")
                    right = torch.equal(shard, own_chunk(expected)), torch.equal(whole, expected)
                    assert on_all_ranks(groups, all(right)), (codec, nodes, segments, dtype, op, right)
            assert isthmus.stats(group)["compressed_calls"] == 2 * 3 * 2 * len(ops)


@table
def packets_are_as_long_as_planned(groups: Groups) -> None:
    """What each codec hands to the rail for a reduce-scatter and an all-reduce, by the formulas of `isthmus plan`."""
    piece = (1 << 16) + 100
    source = inputs_of_all_ranks(WORLD_SIZE * piece, torch.float32)[dist.get_rank()]
    for codec in LOSSY:
        group = groups(**CODECS[codec])
        options = native(group).options
        known = [field.name for field in fields(WireOptions) if hasattr(options, field.name)]
        wire = WireOptions.of({name: getattr(options, name) for name in known})
        packets = piece_bytes(piece, 4, options.codec, wire)
        reduce_scatter(group, source)
        all_reduce(group, source)
        stats = isthmus.stats(group)
        assert stats["compressed_calls"] == 2
        assert stats["collectives"]["reduce_scatter"]["inter"]["sent_bytes"] == packets, codec
        assert stats["collectives"]["all_reduce"]["inter"]["sent_bytes"] == 2 * packets, codec


def main(rank: int, world_size: int) -> dict[str, str]:
    return run_table(table)


test_gradient = table.in_world(main, WORLD_SIZE, env={"ISTHMUS_LOG": "error"})
