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


def steps(places: Places, device: str = "cuda") -> list[Step]:
    """Return all steps that need a GPU: the most telling first, as time may be up before the last.

    device: "fake" for the fake GPU (tests/fake_gpu), which has no kernels.
    """
    is_fake = device == "fake"
    no_kernels = "the fake GPU has no kernels" if is_fake else ""
    checks = str(places.program("check_cuda"))

    def check(name: str, what: str, limit_s: float, **settings: Any) -> Step:
        return Step(name, what, (checks, name), limit_s, missing=no_kernels, **settings)

    def world(name: str, what: str, limit_s: float, of: str = "", arguments: tuple[str, ...] = (), **env: str) -> Step:
        command = (sys.executable, "-m", "gpu.worlds", of or name, *arguments)
        on_fake = ("--device", "fake", *(() if arguments else ("--short",))) if is_fake else ()
        missing = "no graph can be captured on the fake GPU" if is_fake and name == "capture" else ""
        env = {**shared_gpu.ENVIRONMENT, **env}
        return Step(name, what, (*command, *on_fake), limit_s, env=env, missing=missing, least_s=20)

    def sanitized(tool: str, limit_s: float) -> Step:
        command = (SANITIZER or "", "--tool", tool, f"--error-exitcode={FOUND_SOMETHING}", checks, "--short")
        missing = no_kernels or ("" if SANITIZER else "compute-sanitizer is not installed")
        what = f"a short list of the checks under compute-sanitizer's {tool}"
        return Step(tool, what, command, limit_s, judge_sanitized, missing=missing, least_s=20)

    bench = (str(places.program("bench_cuda")),)
    return [
        check("codecs", "codecs on the GPU against the CPU's, bit for bit", 90),
        check("device", "conversions, streams, events, faults", 45),
        check("graphs", "captured graphs of codecs, replayed", 45),
        world(
            "first",
            "the same as the next step, in short: does NCCL take four ranks here?",
            45,
            "collectives",
            ("--short",),
        ),
        world("collectives", "collectives of isthmus against plain sums, and against its own CPU side", 90),
        world("training", "FSDP2, HSDP, FSDP1 and DDP on isthmus 2x2 against nccl", 150),
        Step("bench", "speed of codecs beside a copy; launches", bench, 75, missing=no_kernels, least_s=20),
        world("killed", "a rank is killed in the middle of a step: every other one gets an error that names it", 60),
        world("capture", "a reduce-scatter captured by torch.cuda.graph", 45),
        world("profile", "phases in torch.profiler; device timings in stats", 45),
        world("order", "FSDP2, launches in implicit order, one queue", 60, "training", ("--short",), **IMPLICIT_ORDER),
        sanitized("memcheck", 60),
        sanitized("racecheck", 90),
        sanitized("synccheck", 60),
        # Takes what time is left: the CPU codes billions of elements on one core.
        check("large", "pieces beyond 2^31 bytes and elements", 180, least_s=30),
    ]
