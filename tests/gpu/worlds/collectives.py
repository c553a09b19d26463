"""Collectives of isthmus: exact ones against sums that are known, compressed ones against its own CPU side."""

from __future__ import annotations

import torch
import torch.distributed as dist

import isthmus
from gpu.worlds.reductions import (
    all_reduce,
    heavy_tail,
    isthmus_group,
    own_chunk,
    reduce_scatter,
    sent_bytes,
    whole_numbers,
)
from gpu.worlds.world import World, require
from isthmus.weights import apply, encode
from support.tested_codecs import carried
from support.updates import RECORD_HEAD, parts_of, sealed, update_of

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
SIZES = (4, 4 * 1023, 4 * 100_003)
ALIKE = (
    ("default", reduce_scatter),
    ("default", all_reduce),
    ("tagc", reduce_scatter),
    ("tagc", all_reduce),
    ("flat tagc", reduce_scatter),
    ("default in segments", reduce_scatter),
    ("tagc in segments", all_reduce),
)
UNDER_WAY = ("default", "tagc", "default in segments")


def run(world: World) -> None:
    """Check each kind of collective in groups of their own."""
    with world.group(ISTHMUS_MIN_ELEMENTS="0"):
        world.check("world backend: all-reduce, broadcast, all-to-all, send", lambda: world_backend(world))
        world.check("codec none: reduce-scatter, bit for bit", lambda: exact_reduce_scatter(world))
        world.check("codec none: all-reduce, bit for bit", lambda: exact_all_reduce(world))
        world.check("all-gather in two tiers, bit for bit", lambda: gather(world))
        for codec, collective in ALIKE:
            name = f"codec {codec}: {collective.__name__.replace('_', '-')} as on the CPU, bit for bit"
            world.check(name, lambda: compressed(world, codec, collective))  # noqa: B023
        world.check("default codec: what it can carry arrives, bit for bit", lambda: carried_exactly(world))
        world.check("default codec: NaN and Inf arrive", lambda: not_finite(world))
        for codec in UNDER_WAY:
            world.check(f"codec {codec}: several units under way", lambda: several_under_way(world, codec))  # noqa: B023
        world.check("CPU and device tensors by turns in one group", lambda: by_turns(world))
        world.check("updates of weights as on the CPU, bit for bit; others are refused", lambda: updates(world))


def world_backend(world: World) -> None:
    for dtype in (*FLOATS, torch.int64, torch.int32, torch.uint8):
        expected = sum(whole_numbers(1001, dtype, rank).double() for rank in range(world.size))
        data = whole_numbers(1001, dtype, world.rank).to(world.device)
        dist.all_reduce(data)
        require(torch.equal(data.cpu(), expected.to(torch.int64).to(dtype)), "all-reduce", dtype)
        dist.broadcast(data, 2)
    own = torch.arange(8, device=world.device) + 100 * world.rank
    swapped = torch.empty_like(own)
    dist.all_to_all_single(swapped, own)
    columns = [torch.arange(8).view(4, 2)[world.rank] + 100 * rank for rank in range(world.size)]
    require(torch.equal(swapped.cpu(), torch.cat(columns)), "all-to-all", swapped)
    if world.rank in (0, 3):
        message = torch.full((5,), float(world.rank), device=world.device)
        if world.rank == 0:
            dist.send(message, 3)
        else:
            dist.recv(message, 0)
            require(bool((message == 0).all()), "send and receive", message)
    dist.barrier()


def exact_reduce_scatter(world: World) -> None:
    group = isthmus_group()
    scales = ((dist.ReduceOp.SUM, 1.0), (dist.ReduceOp.AVG, 0.25), (dist._make_nccl_premul_sum(0.5), 0.5))
    for dtype in FLOATS:
        for size in SIZES:
            for op, scale in scales:
                sources = [whole_numbers(size, dtype, rank) for rank in range(world.size)]
                expected = (scale * own_chunk(sum(source.double() for source in sources))).to(dtype)
                result = reduce_scatter(sources[world.rank].to(world.device), group, op=op)
                require(torch.equal(result.cpu(), expected), dtype, size, scale)
    stats = isthmus.stats(group)
    require(stats["compressed_calls"] == 0, stats)
    require(stats["collectives"]["reduce_scatter"]["calls"] == len(FLOATS) * len(SIZES) * len(scales), stats)


def exact_all_reduce(world: World) -> None:
    group = isthmus_group()
    for dtype in FLOATS:
        for size in (1, 5, 4 * 1023 + 1):
            sources = [whole_numbers(size, dtype, rank) for rank in range(world.size)]
            expected = (0.25 * sum(source.double() for source in sources)).to(dtype)
            result = all_reduce(sources[world.rank].to(world.device), group, op=dist.ReduceOp.AVG)
            require(torch.equal(result.cpu(), expected), dtype, size)


def gather(world: World) -> None:
    group = isthmus_group()
    for dtype in (*FLOATS, torch.int64, torch.uint8):
        for size in (1, 1023, 100_003):
            parts = [whole_numbers(size, dtype, rank) for rank in range(world.size)]
            gathered = torch.empty(world.size * size, dtype=dtype, device=world.device)
            dist.all_gather_into_tensor(gathered, parts[world.rank].to(world.device), group=group)
            require(torch.equal(gathered.cpu(), torch.cat(parts)), dtype, size)
    require(isthmus.stats(group)["collectives"]["all_gather"]["calls"] > 0, "no all-gather took two tiers")


def compressed(world: World, codec: str, collective) -> dict[str, object]:  # type: ignore[no-untyped-def]
    """Six steps on the device, the same on the CPU: sums, residuals' later effect and bytes are equal.

    A single tier sums over four ranks, in an order of NCCL's own: there are whole numbers, whose sums are exact.
    """
    on_device, on_cpu = isthmus_group(codec), isthmus_group(codec)
    steps = 3 if world.short else 6
    for step in range(steps):
        for unit, size in (("small", 4 * 1000), ("large", 4 * 150_001)):
            source = heavy_tail(size, world.rank, step)
            source = (16 * source).round() if codec == "flat tagc" else source
            result = collective(source.to(world.device), on_device, unit)
            expected = collective(source, on_cpu, unit)
            require(bool(expected.count_nonzero() > 0), "nothing was sent")
            differing = int((result.cpu().view(torch.int32) != expected.view(torch.int32)).sum())
            require(differing == 0, f"step {step}, unit {unit}: {differing} of {expected.numel()} elements differ")
    require(sent_bytes(on_device) == sent_bytes(on_cpu), sent_bytes(on_device), sent_bytes(on_cpu))
    torch.cuda.synchronize()
    device_stats, cpu_stats = isthmus.stats(on_device), isthmus.stats(on_cpu)
    require(device_stats["compressed_calls"] == 2 * steps, device_stats["compressed_calls"])
    require(device_stats["codec"] == cpu_stats["codec"], device_stats["codec"], cpu_stats["codec"])
    return {"inter-node bytes": sum(tiers["inter"] + tiers["flat"] for tiers in sent_bytes(on_device).values())}


def carried_exactly(world: World) -> None:
    """Sums are known to the bit, whatever the order of additions and the executor."""
    for segments in (1, 4):
        group = isthmus_group("default", segments=segments)
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for step in range(2):
                numel = 4 * (3 * 4096 + 700)
                sources = [carried(numel, rank, world.size, step).to(dtype) for rank in range(world.size)]
                expected = sum(source.double() for source in sources).to(dtype)
                source = sources[world.rank].to(world.device)
                shard = reduce_scatter(source, group, "scatter").cpu()
                require(torch.equal(shard, own_chunk(expected)), "reduce-scatter", segments, dtype, step)
                whole = all_reduce(source, group, "all").cpu()
                require(torch.equal(whole, expected), "all-reduce", segments, dtype, step)
        require(isthmus.stats(group)["compressed_calls"] == 12, isthmus.stats(group)["exact_calls"])


def not_finite(world: World) -> None:
    source = heavy_tail(4 * 65_536, world.rank)
    if world.rank == 0:
        source.view(world.size, -1)[:, 5] = torch.nan
        source.view(world.size, -1)[:, 30_000] = torch.inf
    result = reduce_scatter(source.to(world.device), isthmus_group("default"))
    require(bool(result[5].isnan()), result[5])
    require(not bool(result[30_000].isfinite()), result[30_000])


def several_under_way(world: World, codec: str) -> None:
    """Units that are enqueued before any is waited for give what they give one after another."""
    together, apart = isthmus_group(codec), isthmus_group(codec)
    units = {f"unit {index}": heavy_tail(4 * 40_000 + 64 * index, world.rank, index) for index in range(5)}
    for _ in range(3):
        works, results = [], {}
        for unit, source in units.items():
            data = source.to(world.device)
            results[unit] = torch.empty(data.numel() // world.size, device=world.device)
            with isthmus.unit(unit):
                works.append(dist.reduce_scatter_tensor(results[unit], data, group=together, async_op=True))
            gathered = torch.empty(world.size * 20_000, device=world.device)
            own = torch.full((20_000,), float(world.rank), device=world.device)
            works.append(dist.all_gather_into_tensor(gathered, own, group=together, async_op=True))
        for work in works:
            work.wait()
        for unit, source in units.items():
            require(torch.equal(results[unit], reduce_scatter(source.to(world.device), apart, unit)), unit)


def by_turns(world: World) -> None:
    group = isthmus_group()
    for step in range(3):
        for device in (world.device, torch.device("cpu")):
            sources = [whole_numbers(4 * 5000, torch.float32, rank, step) for rank in range(world.size)]
            result = reduce_scatter(sources[world.rank].to(device), group)
            require(torch.equal(result.cpu(), own_chunk(sum(sources))), step, device)


def updates(world: World) -> None:
    """Without any group."""
    for dtype in (*FLOATS, torch.uint8):
        for size in (0, 1, 17, 16_385, 200_003):
            old, new = (heavy_tail(size, world.rank + index).to(dtype) for index in range(2))
            sides = []
            for device in (torch.device("cpu"), world.device):
                was, now = (tensor.to(device) for tensor in (old, torch.where(torch.arange(size) % 3 == 0, old, new)))
                before = {"whole": was, "same": was, "at no multiple of 16": was[1:]}
                after = {"whole": now, "same": was, "at no multiple of 16": now[1:]}
                sides.append((before, after, encode(before, after)))
            (_, _, of_cpu), (before, after, update) = sides
            require(update == of_cpu, dtype, size, "other bytes than the CPU's")
            for name, result in apply(before, update).items():
                bits = [tensor.reshape(-1).view(torch.uint8) for tensor in (result, after[name])]
                require(result.device == after[name].device and torch.equal(*bits), dtype, size, name)
    refused_updates(world)


def refused_updates(world: World) -> None:
    old = heavy_tail(40_000, world.rank).bfloat16().to(world.device)
    new = old * 1.01
    update = encode(old, new)
    table, record = parts_of(update)
    damaged, forged = bytearray(record), bytearray(record)
    damaged[RECORD_HEAD + 100] ^= 4
    forged[RECORD_HEAD + 7] = 0xFF  # of the second block's number of bytes
    calls = {
        "the old bits have the checksum": lambda: apply(new, update),
        "corrupt packet": lambda: apply(old, update_of(table, bytes(damaged))),
        "block 1": lambda: apply(old, update_of(table, sealed(forged))),
        "old weights of device cpu, new ones of cuda:0": lambda: encode(old.cpu(), new),
    }
    for words, call in calls.items():
        before = old.clone()
        try:
            call()
            raise AssertionError(f"accepted, where '{words}' is expected")
        except isthmus.Error as error:
            require(words in str(error), error)
        require(torch.equal(old, before), words)
    require(torch.equal(apply(old, update), new), "after what was refused")
