"""All steps, in the order in which they are run: what other steps stand on comes first."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from gpu.harness import sanitizer
from gpu.harness.build import Places
from gpu.harness.steps import Step, judge_end

# What lets several ranks of NCCL share one GPU: each has a host of its own (NCCL_HOSTID, which worlds/launch.py sets),
# so that NCCL joins them by sockets. No feature that is there for several GPUs of one host is tried.
NCCL_ON_ONE_GPU = {
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_NET": "Socket",
    "NCCL_IB_DISABLE": "1",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_MNNVL_ENABLE": "0",
    "NCCL_DEBUG": "WARN",
    "GLOO_SOCKET_IFNAME": "lo",
}
IMPLICIT_ORDER = {"NCCL_LAUNCH_ORDER_IMPLICIT": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}


def build_steps(install: Sequence[str], limit_s: float) -> list[Step]:
    """Return the steps that build; nothing else can be run if one of them fails."""
    imported = (sys.executable, "-m", "gpu.harness.check_install")
    return [
        Step("build", "compile core, CUDA code and torch module, and install", tuple(install), limit_s, judge_end),
        Step("import", "isthmus is the one that was built, and its module loads", imported, 60),
    ]


def steps(places: Places) -> list[Step]:
    """Return all steps that need a GPU."""
    return [*_checks(places), *_sanitizers(places), *_worlds(), *_benchmarks(places), _large(places)]


def _checks(places: Places) -> list[Step]:
    program = str(places.program("check_cuda"))
    return [
        Step("codecs", "codecs on the GPU against the CPU's, bit for bit", (program, "codecs"), 120),
        Step("device", "conversions, streams, events, faults", (program, "device"), 60),
        Step("graphs", "captured graphs of codecs, replayed", (program, "graphs"), 60),
    ]


def _large(places: Places) -> Step:
    """Return the step that takes what time is left: the CPU codes billions of elements on one core."""
    return Step("large", "pieces beyond 2^31 bytes and elements", (str(places.program("check_cuda")), "large"), 180)


def _sanitizers(places: Places) -> list[Step]:
    program, found = str(places.program("check_cuda")), sanitizer.find()
    missing = "" if found else "compute-sanitizer is not installed"

    def step(tool: str, limit_s: float) -> Step:
        command = (found or "compute-sanitizer", "--tool", tool, f"--error-exitcode={sanitizer.FOUND_SOMETHING}")
        what = f"a short list of the checks under compute-sanitizer's {tool}"
        return Step(tool, what, (*command, program, "--short"), limit_s, sanitizer.judge, missing=missing)

    return [step("memcheck", 60), step("racecheck", 90), step("synccheck", 60)]


def _worlds() -> list[Step]:
    def step(name: str, what: str, limit_s: float, *arguments: str, **env: str) -> Step:
        command = (sys.executable, "-m", "gpu.worlds", *(arguments or (name,)))
        return Step(name, what, command, limit_s, env={**NCCL_ON_ONE_GPU, **env})

    return [
        step("nccl", "plain NCCL, four ranks on this GPU as four hosts", 60),
        step("collectives", "collectives of isthmus against plain sums, and against its own CPU side", 90),
        step("fsdp", "FSDP2 on isthmus 2x2 against nccl: codecs none and tagc; saved and resumed", 150),
        step("ddp", "DDP with prepare, and HSDP", 120),
        step("capture", "a reduce-scatter captured by torch.cuda.graph", 60),
        step("profile", "phases in torch.profiler; device timings in stats", 60),
        step("faults", "packets of another step are an error on every rank", 90),
        step("order", "FSDP2 with launches in implicit order and one queue", 90, "fsdp", "--short", **IMPLICIT_ORDER),
        step("launch_overhead", "host time of a call of the whole path over NCCL", 60),
    ]


def _benchmarks(places: Places) -> list[Step]:
    perf = places.program("isthmus_perf")
    missing = "" if perf.exists() else "isthmus_perf was not built: its libraries are not here (--prefix)"
    command = (sys.executable, "-m", "gpu.harness.perf", str(perf))
    return [
        Step("bench", "speed of codecs beside a copy; launches", (str(places.program("bench_cuda")),), 150),
        Step("perf", "isthmus_perf over NCCL, four ranks", command, 60, env=NCCL_ON_ONE_GPU, missing=missing),
    ]
