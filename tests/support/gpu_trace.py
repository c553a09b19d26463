"""What a process on the fake GPU enqueues, and which of it comes before which: tests/fake_gpu/fake_trace.cpp.

Two pieces of work are ordered if both are on one stream, if an event orders their streams, or if the host waited
between them. That is so whenever they were enqueued, though the fake GPU does everything at once.
"""

from __future__ import annotations

import ctypes
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from support import fake_gpu

Value = TypeVar("Value")
Clock = dict[int, int]  # for each stream, how many pieces of its work come before


@dataclass(frozen=True)
class Use:
    begin: int
    end: int
    is_written: bool


@dataclass(frozen=True)
class Work:
    name: str
    stream: int
    uses: tuple[Use, ...]
    number: int  # on its stream, from 1
    before: Clock

    def comes_after(self, other: Work) -> bool:
        """Return whether this begins only when `other` is done."""
        return self is not other and self.before.get(other.stream, 0) >= other.number

    def writes(self, address: int) -> bool:
        """Return whether this writes the byte at an address."""
        return any(use.is_written and use.begin <= address < use.end for use in self.uses)


@dataclass(frozen=True)
class Timeline:
    """When works run and the host waits, if each takes as long as it is said to and waits for no more than it must."""

    spans: list[tuple[Work, float, float]]
    waits: list[tuple[float, int]]  # of the host: until when, and how many works it had enqueued by then

    @property
    def end(self) -> float:
        return max(end for _, _, end in self.spans)


class Trace:
    """The lines of a trace, in the order of the calls."""

    def __init__(self, text: str) -> None:
        self._lines = list(_with_waits([json.loads(line) for line in text.splitlines()]))
        self.works = list(self._works())

    def named(self, name: str) -> list[Work]:
        return [work for work in self.works if work.name == name]

    def _works(self) -> Iterator[Work]:
        streams: dict[int, Clock] = defaultdict(dict)
        events: dict[int, Clock] = defaultdict(dict)  # those recorded before the trace order nothing in it
        host: Clock = {}
        for line in self._lines:
            if "host" in line:
                _merge(host, *_waited_for(line, streams, events))
                continue
            clock = streams[line["stream"]]
            if "record" in line:
                events[line["record"]] = dict(clock)
            elif "wait" in line:
                _merge(clock, events[line["wait"]])
            else:
                _merge(clock, host)
                clock[line["stream"]] = clock.get(line["stream"], 0) + 1
                uses = tuple(Use(*use) for use in line["uses"])
                yield Work(line["name"], line["stream"], uses, clock[line["stream"]], dict(clock))

    def conflicts(self) -> list[str]:
        """Return a sentence for each two works that use the same memory, one of them to write it, in no order."""
        found = []
        alive: list[tuple[Use, Work]] = []
        for use, work in sorted(((u, w) for w in self.works for u in w.uses), key=lambda pair: pair[0].begin):
            alive = [pair for pair in alive if pair[0].end > use.begin]
            found += [
                f"{work.name} on stream {work.stream:x} and {other.name} on stream {other.stream:x}"
                for earlier, other in alive
                if (use.is_written or earlier.is_written)
                and not (work is other or work.comes_after(other) or other.comes_after(work))
            ]
            alive.append((use, work))
        return found

    def seconds(self, durations: Mapping[str, float]) -> float:
        return self.timeline(lambda work: durations.get(work.name, 0.0)).end

    def timeline(
        self, seconds: Callable[[Work], float], launch_seconds: Callable[[Work], float] = lambda _: 0.0
    ) -> Timeline:
        """Return what runs when, where a work takes so long on the device, and the host so long to enqueue it."""
        streams: dict[int, float] = defaultdict(float)
        events: dict[int, float] = defaultdict(float)
        works = iter(self.works)
        timeline = Timeline([], [])
        host = 0.0
        for line in self._lines:
            if "host" in line:
                host = max(host, *_waited_for(line, streams, events))
                timeline.waits.append((host, len(timeline.spans)))
            elif "record" in line:
                events[line["record"]] = streams[line["stream"]]
            elif "wait" in line:
                streams[line["stream"]] = max(streams[line["stream"]], events[line["wait"]])
            else:
                work = next(works)
                host += launch_seconds(work)
                begin = max(streams[work.stream], host)
                streams[work.stream] = begin + seconds(work)
                timeline.spans.append((work, begin, streams[work.stream]))
        return timeline


def _with_waits(lines: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield lines, with a wait of the host in place of the look by which it sees that a copy to its memory is done.

    The host waits for such a copy by looking again and again; the fake GPU is done at the first look. Other looks, as
    those of torch's allocator, do not wait, and those of threads that enqueue nothing are watchdogs'.
    """
    lines = list(lines)
    enqueueing = {line["thread"] for line in lines if "name" in line and "thread" in line}
    latest: dict[int, str] = {}
    of_copies: set[int] = set()
    for line in lines:
        if "query" in line:
            if line["query"] in of_copies and line["thread"] in enqueueing:
                of_copies.remove(line["query"])
                yield {"host": "event", "handle": line["query"]}
            continue
        if "name" in line:
            latest[line["stream"]] = line["name"]
        elif "record" in line and latest.get(line["stream"]) == "copy to host":
            of_copies.add(line["record"])
        yield line


def _waited_for(line: dict[str, Any], streams: dict[int, Value], events: dict[int, Value]) -> list[Value]:
    """Return what is known of the streams or events that the host waits for."""
    if line["host"] == "device":
        return list(streams.values())
    return [(streams if line["host"] == "stream" else events)[line["handle"]]]


def _merge(into: Clock, *clocks: Clock) -> None:
    for clock in clocks:
        for stream, number in clock.items():
            into[stream] = max(into.get(stream, 0), number)


def note(name: str, *written: torch.Tensor, read: tuple[torch.Tensor, ...] = ()) -> None:
    """Add work on the current stream to the trace, if there is one."""
    uses = [[*_extent(t), is_written] for ts, is_written in ((read, False), (written, True)) for t in ts if t.numel()]
    line = {"name": name, "stream": torch.cuda.current_stream().cuda_stream, "uses": uses}
    ctypes.CDLL(None).fake_gpu_trace_line(json.dumps(line).encode())


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def traced(path: Path, body: Callable[[], None]) -> Trace:
    """Run `body` from an idle device to an idle device, and return what it enqueued."""
    torch.cuda.synchronize()
    library = ctypes.CDLL(None)
    library.fake_gpu_trace(str(path).encode())
    fake_gpu.note_kernel = note
    try:
        body()
    finally:
        fake_gpu.note_kernel = None
        library.fake_gpu_trace(None)
    torch.cuda.synchronize()
    return Trace(path.read_text())
