"""All steps that need a GPU, each a program: the most telling first, as time may be up before the last (docs/gpu.md).

tests/gpu/run builds what they run, and has pytest run them and report.
"""

import pytest

from gpu.steps import Step
from gpu.worlds import shared_gpu

IMPLICIT_ORDER = {"NCCL_LAUNCH_ORDER_IMPLICIT": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}


@pytest.mark.limit(90)
def test_import(step: Step) -> None:
    """isthmus is the one that was built, and its module loads"""
    try:
        step.python("gpu.check_install")
    except BaseException:
        step.steps.loads = False
        raise


@pytest.mark.limit(90)
def test_codecs(step: Step) -> None:
    """codecs on the GPU against the CPU's, bit for bit"""
    step.program("test_device_cuda", "--gtest_filter=Codecs.*")


@pytest.mark.limit(210, least=60)
def test_link(step: Step) -> None:
    """isthmus bench training: plain and compressed, over links of 10 and 25 Gbit/s between
    simulated nodes"""
    step.python("gpu.link")


@pytest.mark.limit(120, least=20)
def test_collectives(step: Step) -> None:
    """collectives of isthmus against plain sums, and against its own CPU side; a reduce-scatter captured by
    torch.cuda.graph; phases in torch.profiler, device timings in stats"""
    # Four processes take 15 s to start on a GPU: one start for several worlds.
    step.python("gpu.worlds", "collectives", "capture", "profile", **shared_gpu.ENVIRONMENT)


@pytest.mark.limit(60, least=20)
def test_killed(step: Step) -> None:
    """a rank is killed in the middle of a step: every other one gets an error that names it"""
    step.python("gpu.worlds", "killed", **shared_gpu.ENVIRONMENT)


@pytest.mark.limit(150, least=20)
def test_training(step: Step) -> None:
    """FSDP2, HSDP, FSDP1 and DDP on isthmus 2x2 against nccl"""
    step.python("gpu.worlds", "training", **shared_gpu.ENVIRONMENT)


@pytest.mark.limit(45)
def test_device(step: Step) -> None:
    """conversions, streams, events, faults"""
    step.program("test_device_cuda", "--gtest_filter=Device.*")


@pytest.mark.limit(45)
def test_graphs(step: Step) -> None:
    """captured graphs of codecs, replayed"""
    step.program("test_device_cuda", "--gtest_filter=Graphs.*")


@pytest.mark.limit(75, least=20)
def test_bench(step: Step) -> None:
    """speed of codecs beside a copy"""
    step.program("bench_cuda")


@pytest.mark.limit(60, least=20)
def test_order(step: Step) -> None:
    """FSDP2, launches in implicit order, one queue"""
    step.python("gpu.worlds", "training", "--short", **shared_gpu.ENVIRONMENT, **IMPLICIT_ORDER)


@pytest.mark.limit(60, least=20)
def test_memcheck(step: Step) -> None:
    """a short list of the checks under compute-sanitizer's memcheck"""
    step.sanitized("memcheck")


@pytest.mark.limit(90, least=20)
def test_racecheck(step: Step) -> None:
    """a short list of the checks under compute-sanitizer's racecheck"""
    # A check takes a hundred times as long under it. A race needs no more than a few blocks.
    step.sanitized("racecheck", "805 elements", "1025 elements", "5000 from 0 of 5000")


@pytest.mark.limit(60, least=20)
def test_synccheck(step: Step) -> None:
    """a short list of the checks under compute-sanitizer's synccheck"""
    step.sanitized("synccheck")


@pytest.mark.limit(180, least=30)
def test_large(step: Step) -> None:
    """pieces beyond 2^31 bytes and elements"""
    # Takes what time is left: the CPU codes billions of elements on one core.
    step.program("test_device_cuda", "--gtest_filter=Large.*")
