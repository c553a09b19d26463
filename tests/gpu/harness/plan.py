"""All steps, in the order in which they are run."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpu.harness import sanitizer, shared_gpu
from gpu.harness.build import Places
from gpu.harness.steps import Step, judge_end

IMPLICIT_ORDER = {"NCCL_LAUNCH_ORDER_IMPLICIT": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}


def build_step(install: Sequence[str], limit_s: float) -> Step:
    """Return the step that builds; nothing else can be run if it fails."""
    return Step("build", "compile core, CUDA code and torch module, and install", tuple(install), limit_s, judge_end)


def import_step() -> Step:
    """Return the step that looks at what was built."""
    imported = (sys.executable, "-m", "gpu.harness.check_install")
    return Step("import", "isthmus is the one that was built, and its module loads", imported, 90)


def steps(places: Places, device: str = "cuda") -> list[Step]:
    """Return all steps that need a GPU: the most telling first, as time may be up before the last.

    device: "fake" for the fake GPU (tests/fake_gpu), which has no kernels.
    """
    return [
        *_checks(places, device),
        *_worlds(_FIRST_WORLDS, device),
        _bench(places, device),
        *_worlds(_LATER_WORLDS, device),
        *_sanitizers(places, device),
        _large(places, device),
    ]


def _why_not(device: str) -> str:
    return "the fake GPU has no kernels" if device == "fake" else ""


def _checks(places: Places, device: str) -> list[Step]:
    def step(name: str, what: str, limit_s: float) -> Step:
        return Step(name, what, (str(places.program("check_cuda")), name), limit_s, missing=_why_not(device))

    return [
        step("codecs", "codecs on the GPU against the CPU's, bit for bit", 90),
        step("device", "conversions, streams, events, faults", 45),
        step("graphs", "captured graphs of codecs, replayed", 45),
    ]


def _large(places: Places, device: str) -> Step:
    """Return a step that takes what time is left: the CPU codes billions of elements on one core."""
    command = (str(places.program("check_cuda")), "large")
    what = "pieces beyond 2^31 bytes and elements"
    return Step("large", what, command, 180, missing=_why_not(device), least_s=30)


def _sanitizers(places: Places, device: str) -> list[Step]:
    program, found = str(places.program("check_cuda")), sanitizer.find()
    missing = _why_not(device) or ("" if found else "compute-sanitizer is not installed")

    def step(tool: str, limit_s: float) -> Step:
        command = (found or "compute-sanitizer", "--tool", tool, f"--error-exitcode={sanitizer.FOUND_SOMETHING}")
        what = f"a short list of the checks under compute-sanitizer's {tool}"
        return Step(tool, what, (*command, program, "--short"), limit_s, sanitizer.judge, missing=missing, least_s=20)

    return [step("memcheck", 60), step("racecheck", 90), step("synccheck", 60)]


@dataclass(frozen=True)
class _World:
    """A world of four ranks. name: of the step; world: which module of tests/gpu/worlds, if not that of the name."""

    name: str
    what: str
    limit_s: float
    world: str = ""
    arguments: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


_FIRST_WORLDS = (
    _World("nccl", "plain NCCL, four ranks on this GPU", 45),
    _World("collectives", "collectives of isthmus against plain sums, and against its own CPU side", 90),
    _World("training", "FSDP2, HSDP, FSDP1 and DDP on isthmus 2x2 against nccl", 150),
)
_LATER_WORLDS = (
    _World("killed", "a rank is killed in the middle of a step: every other one gets an error that names it", 60),
    _World("faults", "packets of another step are an error on every rank", 45),
    _World("capture", "a reduce-scatter captured by torch.cuda.graph", 45),
    _World("launch_overhead", "host time of a call of the whole path over NCCL", 45),
    _World("profile", "phases in torch.profiler; device timings in stats", 45),
    _World("order", "FSDP2, launches in implicit order, one queue", 60, "training", ("--short",), IMPLICIT_ORDER),
)


def _worlds(worlds: Sequence[_World], device: str) -> list[Step]:
    def step(world: _World) -> Step:
        command = (sys.executable, "-m", "gpu.worlds", world.world or world.name, *world.arguments)
        on_fake = ("--device", "fake", *(["--short"] if not world.arguments else [])) if device == "fake" else ()
        missing = "no graph can be captured on the fake GPU" if on_fake and world.name == "capture" else ""
        env = {**shared_gpu.ENVIRONMENT, **world.env}
        return Step(world.name, world.what, (*command, *on_fake), world.limit_s, env=env, missing=missing, least_s=20)

    return [step(world) for world in worlds]


def _bench(places: Places, device: str) -> Step:
    command = (str(places.program("bench_cuda")),)
    what = "speed of codecs beside a copy; launches"
    return Step("bench", what, command, 75, missing=_why_not(device), least_s=20)
