"""All steps, in the order in which they are run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from gpu.harness import shared_gpu
from gpu.harness.build import Places
from gpu.harness.steps import FOUND_SOMETHING, SANITIZER, Step, judge_end, judge_sanitized

IMPLICIT_ORDER = {"NCCL_LAUNCH_ORDER_IMPLICIT": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}


def build_step(install: Sequence[str]) -> Step:
    """Return the step that builds; nothing else can be run if it fails."""
    return Step("build", "compile core, CUDA code and torch module, and install", tuple(install), 300, judge_end)


def import_step() -> Step:
    """Return the step that looks at what was built."""
    imported = (sys.executable, "-m", "gpu.harness.check_install")
    return Step("import", "isthmus is the one that was built, and its module loads", imported, 90)


def steps(places: Places) -> list[Step]:
    """Return all steps that need a GPU: the most telling first, as time may be up before the last."""
    checks = str(places.program("check_cuda"))

    def check(name: str, what: str, limit_s: float, **settings: Any) -> Step:
        return Step(name, what, (checks, name), limit_s, **settings)

    def world(name: str, what: str, limit_s: float, *arguments: str, **env: str) -> Step:
        command = (sys.executable, "-m", "gpu.worlds", *(arguments or (name,)))
        return Step(name, what, command, limit_s, env={**shared_gpu.ENVIRONMENT, **env}, least_s=20)

    def sanitized(tool: str, limit_s: float, *only: str) -> Step:
        program = (checks, "--short", *(f"--only={text}" for text in only))
        command = (SANITIZER or "", "--tool", tool, f"--error-exitcode={FOUND_SOMETHING}", *program)
        missing = "" if SANITIZER else "compute-sanitizer is not installed"
        what = f"a short list of the checks under compute-sanitizer's {tool}"
        return Step(tool, what, command, limit_s, judge_sanitized, missing=missing, least_s=20)

    return [
        check("codecs", "codecs on the GPU against the CPU's, bit for bit", 90),
        check("device", "conversions, streams, events, faults", 45),
        check("graphs", "captured graphs of codecs, replayed", 45),
        # Four processes take 15 s to start on a GPU: one start for several worlds.
        world(
            "collectives",
            "collectives of isthmus against plain sums, and against its own CPU side; a reduce-scatter captured by "
            "torch.cuda.graph; phases in torch.profiler, device timings in stats",
            120,
            *("collectives", "capture", "profile"),
        ),
        world("training", "FSDP2, HSDP, FSDP1 and DDP on isthmus 2x2 against nccl", 150),
        Step(
            "link",
            "isthmus bench training: plain and compressed, over a link of 10 Gbit/s between simulated nodes",
            (sys.executable, "-m", "gpu.link"),
            150,
            least_s=60,
        ),
        Step("bench", "speed of codecs beside a copy", (str(places.program("bench_cuda")),), 75, least_s=20),
        world("killed", "a rank is killed in the middle of a step: every other one gets an error that names it", 60),
        world("order", "FSDP2, launches in implicit order, one queue", 60, "training", "--short", **IMPLICIT_ORDER),
        sanitized("memcheck", 60),
        # A check takes a hundred times as long under it. A race needs no more than a few blocks.
        sanitized("racecheck", 90, "805 elements", "1025 elements", "5000 from 0 of 5000"),
        sanitized("synccheck", 60),
        # Takes what time is left: the CPU codes billions of elements on one core.
        check("large", "pieces beyond 2^31 bytes and elements", 180, least_s=30),
    ]
