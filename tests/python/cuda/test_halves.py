"""Gathers of weights in two halves, on the fake GPU: what the host waits for, and what runs meanwhile."""

import gc
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import isthmus
from isthmus.base.backends import backend_of
from isthmus.model import collectives
from isthmus.plan.pipeline import Resource, Stage, UnitWork, passes_s
from python.cuda import worlds as cuda_worlds
from support import fake_gpu, ranks
from support.checks import finish
from support.gpu_trace import Trace, Work, traced
from support.logs import logged

pytestmark = [pytest.mark.processes, cuda_worlds.needs_fake_gpu]

WORLD_SIZE = 4
UNITS = 4
FEATURES = 64
OPTIONS: dict[str, Any] = {"nodes": "2x2", "min_elements": 0, "segments": 1, "weights": "delta"}


def trace_steps(rank: int, world_size: int) -> list[str]:
    """A step's traces on rank 0, by name alone: in halves, and in one piece, with none ahead."""
    traces = []
    store = ranks.store()
    for in_halves in (True, False):
        ranks.init(store=dist.PrefixStore(str(in_halves), store), pg_options=isthmus.Options(**OPTIONS))
        model = cuda_worlds.sharded((world_size,), units=UNITS, features=FEATURES)
        if not in_halves:
            collectives.UnitAllGather._sends_differences = property(lambda self: False, lambda self, value: None)
            isthmus.prepare(model, prefetch=False)
        step = cuda_worlds.training_step(model, FEATURES)
        for _ in range(4):  # after the 4th the statistics are looked at, which waits for the GPU
            step()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace"
            traced(path, step)
            traces.append(path.read_text())
        finish()
    return traces


#: Milliseconds of a unit on an H200 whose link has 10 Gbit/s: a block of a GPT of 12, with 152.6 M parameters. Packets
#: take .75 in that run; as much as the computation, they show best what waits for what.
FORWARD, BACKWARD, HEADERS, ENCODE, DECODE, IN_NODE, PACKETS = 1.1, 2.2, 0.24, 0.24, 0.2, 0.05, 1.1


class Step:
    """A traced step, by what its works are for."""

    def __init__(self, text: str) -> None:
        self.trace = Trace(text)
        self.headers = [w for w in self.trace.named("AllGather") if max(use.end - use.begin for use in w.uses) == 64]
        rail = {work.stream for work in self.headers}
        self.packets = [work for work in self.trace.named("Send/Recv") if work.stream in rail]
        self.forward = [work for work in self.trace.works if "addmm" in work.name]
        self.backward = [work for work in self.trace.works if ".mm." in work.name]
        self.timeline = self.trace.timeline(self._ms)
        self._spans = {id(work): (begin, end) for work, begin, end in self.timeline.spans}

    def _ms(self, work: Work) -> float:
        if work in self.headers:
            return HEADERS
        if work in self.packets:
            return PACKETS
        if work in self.backward:
            return BACKWARD / 2  # one of a unit's two products
        of_kind = {"encode weights": ENCODE, "decode weights": DECODE, "AllGather": IN_NODE}
        return FORWARD if work in self.forward else of_kind.get(work.name, 0.0)

    def begin(self, work: Work) -> float:
        return self._spans[id(work)][0]

    def end(self, work: Work) -> float:
        return self._spans[id(work)][1]

    def dry_waits(self) -> int:
        """How often, after the step's first time, the host waits until the GPU has computed all that it was given."""
        computes = {id(work) for work in self.forward + self.backward}
        ends = [end if id(work) in computes else 0.0 for work, _, end in self.timeline.spans]
        return sum(max(ends[:enqueued]) <= until for until, enqueued in self.timeline.waits[1:])


@pytest.fixture(scope="module")
def both_steps() -> list[Step]:
    return list(map(Step, fake_gpu.run(trace_steps, WORLD_SIZE)[0]))


@pytest.fixture
def step(both_steps: list[Step]) -> Step:
    return both_steps[0]


@pytest.fixture
def step_in_one_piece(both_steps: list[Step]) -> Step:
    return both_steps[1]


def test_the_gpu_computes_while_the_host_waits(step: Step, step_in_one_piece: Step) -> None:
    assert len(step.timeline.waits) == len(step_in_one_piece.timeline.waits) == 2 * UNITS
    assert step_in_one_piece.dry_waits() == UNITS - 1, "before each backward pass of a unit that has a next one"
    assert step.dry_waits() == 0


def test_a_unit_is_gathered_while_the_one_before_computes(step: Step) -> None:
    assert len(step.packets) == UNITS, "the shards changed before the forward pass, and not before the backward pass"
    for before, headers, packets in zip(step.forward, step.headers[1:], step.packets[1:], strict=False):
        assert step.end(headers) < step.end(before)
        assert step.begin(packets) < step.end(before)
        assert step.end(packets) > step.begin(before)


def test_all_uses_of_memory_are_ordered(step: Step) -> None:
    assert step.trace.named("decode weights"), "the trace shows who writes replicas"
    assert step.trace.conflicts() == []


def test_reductions_wait_for_what_they_waited_for_before(step: Step, step_in_one_piece: Step) -> None:
    waits = []
    for trace in (step.trace, step_in_one_piece.trace):
        sums, decodings = trace.named("ReduceScatter"), trace.named("decode")
        assert len(sums) == 2 * UNITS and len(decodings) == UNITS  # of other nodes, and the own one
        waits.append([one.comes_after(decoding) for one in sums for decoding in decodings])
    assert waits[0] == waits[1]


def planned() -> float:
    """What `isthmus plan` makes of these durations."""
    encode, decode = Stage((Resource.ENCODER,), ENCODE), Stage((Resource.DECODER,), DECODE)
    headers, packets = Stage((Resource.BETWEEN,), HEADERS), Stage((Resource.BETWEEN,), PACKETS)
    in_node = Stage((Resource.WITHIN,), 2 * IN_NODE)  # the shards of each node
    changed, unchanged = (encode, headers, packets, decode, in_node), (encode, headers, in_node)
    unit = UnitWork(1 / UNITS, forward_gather=changed, backward_gather=unchanged)
    return passes_s([unit] * UNITS, input_buffers=2, compute_s=UNITS * (FORWARD + BACKWARD))


def test_the_step_is_shorter_and_about_as_planned(step: Step, step_in_one_piece: Step) -> None:
    print(f"{UNITS} units, exchanges of gradients not counted: {step.timeline.end:.2f} ms, ", end="")
    print(f"in one piece {step_in_one_piece.timeline.end:.2f}, planned {planned():.2f}, ", end="")
    print(f"computation {UNITS * (FORWARD + BACKWARD):.2f}")
    assert step.timeline.end < step_in_one_piece.timeline.end
    assert step.timeline.end <= 1.15 * planned()


# --- bits, whatever comes between the halves


class Model(nn.Module):
    """Units of which a pass may leave the last ones out, or use them in another order."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(FEATURES, FEATURES) for _ in range(UNITS))

    def forward(self, x: torch.Tensor, order: tuple[int, ...] = tuple(range(UNITS))) -> torch.Tensor:
        for index in order:
            if index < 0:
                raise RuntimeError("a pass ends")
            x = torch.relu(self.layers[index](x)) + 0.5 * x
        return x


class Trained:
    def __init__(self, name: str, prefetch: bool) -> None:
        self.model: Any = Model().cuda()
        mesh = init_device_mesh("cuda", (WORLD_SIZE,))
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for layer in self.model.layers:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(self.model, mesh=mesh, mp_policy=policy)
        isthmus.prepare(self.model, name=name, prefetch=prefetch)
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self._generator = torch.Generator().manual_seed(dist.get_rank())

    def forward(self, *order: int) -> torch.Tensor:
        x = torch.randn(2, FEATURES, generator=self._generator).cuda()
        return self.model(x, *((order,) if order else ())).float().square().mean()

    def optimize(self) -> None:
        self._optimizer.step()
        self._optimizer.zero_grad()

    def steps(self, number: int, *order: int) -> None:
        for _ in range(number):
            self.forward(*order).backward()
            self.optimize()

    def bits(self) -> bytes:
        shards = [parameter.to_local().detach().cpu() for parameter in self.model.parameters()]
        return torch.cat([shard.flatten() for shard in shards]).numpy().tobytes()


Scenario = Callable[[Trained, Callable[[str], Trained]], None]
SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    SCENARIOS[function.__name__] = function
    return function


@scenario
def steps(trained: Trained, make: Callable[[str], Trained]) -> None:
    trained.steps(3)


@scenario
def two_models_by_turns(trained: Trained, make: Callable[[str], Trained]) -> None:
    other = make("other")
    for _ in range(3):
        loss, other_loss = trained.forward(), other.forward()
        other_loss.backward()
        loss.backward()
        trained.optimize()
        other.optimize()


@scenario
def two_units_ahead_in_backward_passes(trained: Trained, make: Callable[[str], Trained]) -> None:
    layers = trained.model.layers
    for index in range(2, UNITS):
        layers[index].set_modules_to_backward_prefetch([layers[index - 2], layers[index - 1]])
    trained.steps(3)


@scenario
def a_gather_that_no_pass_uses(trained: Trained, make: Callable[[str], Trained]) -> None:
    trained.steps(2, 0, 1, 2)
    for _ in range(2):
        trained.model.layers[3].unshard(async_op=True)
        trained.steps(1, 0, 1, 2)
    trained.steps(2)


@scenario
def passes_that_end_early(trained: Trained, make: Callable[[str], Trained]) -> None:
    trained.steps(2)
    with torch.no_grad():
        trained.forward(0, 1)
    trained.steps(1)
    trained.steps(2, 2, 1, 0)


@scenario
def evaluation(trained: Trained, make: Callable[[str], Trained]) -> None:
    for mode in (torch.no_grad, torch.inference_mode):
        trained.steps(1)
        with mode():
            trained.forward()


@scenario
def shards_that_change_between_the_halves(trained: Trained, make: Callable[[str], Trained]) -> None:
    trained.steps(2)
    for layer in trained.model.layers:
        layer.unshard(async_op=True)
        with torch.no_grad():
            layer.weight.to_local().mul_(1.5)
        trained.steps(1)


@scenario
def an_error_between_the_halves(trained: Trained, make: Callable[[str], Trained]) -> None:
    trained.steps(2)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="a pass ends"):
            trained.forward(0, 1, -1)
        with torch.no_grad():
            for parameter in trained.model.parameters():
                parameter.to_local().mul_(0.5)
    trained.steps(1)


@scenario
def a_model_that_goes_between_the_halves(trained: Trained, make: Callable[[str], Trained]) -> None:
    other = make("other")
    other.steps(2)
    other.model.layers[1].unshard(async_op=True)
    del other
    gc.collect()
    trained.steps(2)


@scenario
def waits_by_another_thread(trained: Trained, make: Callable[[str], Trained]) -> None:
    for _ in range(3):
        handle = trained.model.layers[2].unshard(async_op=True)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(handle.wait).result()
        trained.steps(1)


def train(rank: int, world_size: int) -> dict[str, dict[str, tuple[bytes, list[str]]]]:
    return {weights: train_all(weights) for weights in ("plain", "delta")}


def train_all(weights: str) -> dict[str, tuple[bytes, list[str]]]:
    ranks.init(pg_options=isthmus.Options(**{**OPTIONS, "weights": weights}))
    found = {}
    for name, function in SCENARIOS.items():

        def make(part: str, name: str = name) -> Trained:
            return Trained(f"{name} {part}", prefetch=weights == "delta")

        trained = make("first")
        with logged() as texts:
            function(trained, make)
        found[name] = (trained.bits(), [text for text in texts if "different orders" in text])
    finish()
    return found


@pytest.fixture(scope="module")
def bits() -> list[dict[str, dict[str, tuple[bytes, list[str]]]]]:
    return fake_gpu.run(train, WORLD_SIZE)


@pytest.mark.parametrize("name", SCENARIOS)
def test_bits_are_those_of_plain_gathers_without_prefetch(bits: Any, name: str) -> None:
    for of_rank in bits:
        assert of_rank["plain"][name][0] == of_rank["delta"][name][0]


def test_says_once_that_units_are_no_longer_gathered_ahead(bits: Any) -> None:
    for of_rank in bits:
        told = {name: len(texts) for name, (_, texts) in of_rank["delta"].items() if texts}
        assert told == {"passes_that_end_early": 1}


def abort_between_the_halves(rank: int, world_size: int) -> str:
    ranks.init(pg_options=isthmus.Options(**OPTIONS))
    trained = Trained("model", prefetch=True)
    trained.steps(2)
    handle = trained.model.layers[1].unshard(async_op=True)
    backend_of(None).abort()
    try:
        handle.wait()
    except RuntimeError as error:
        return str(error)
    return ""


def test_an_abort_between_the_halves_is_an_error() -> None:
    for text in fake_gpu.run(abort_between_the_halves, WORLD_SIZE):
        assert "abort" in text, text
