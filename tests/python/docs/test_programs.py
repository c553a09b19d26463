"""The programs in documents run, and compute what they say."""

import contextlib
import io
import os
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

import isthmus
from support import ranks
from support.checks import finish
from support.documents import programs
from support.limits import HANG_S
from support.places import ROOT
from support.updates import mix

pytestmark = pytest.mark.processes

RECIPES = programs("docs/recipes.md")
SGD = r"torch.optim.SGD(\1, lr=1e-2)"


def run_programs(rank: int, world_size: int, ports: list[list[int]]) -> dict[str, float]:
    """Run each program in this process, with a store of its own: as it stands; and with SGD, whose steps are as wrong
    as the gradients, on Gloo for no step and for all, and on Isthmus.

    Return how far this rank's weights end from Gloo's in the last one, as a share of how far these moved.
    """
    distances = {}
    for name, own_ports in zip(sorted(RECIPES), ports, strict=True):
        shown = RECIPES[name]
        with_sgd, changes = re.subn(r"torch\.optim\.\w+\(([\w.()]+), lr=[^)]+\)", SGD, shown)
        assert changes == len(re.findall(r"torch\.optim\.", shown))
        on_gloo = re.sub(r"\n(assert|stats|isthmus\.(prepare|attach)).*", "", with_sgd).replace('"isthmus"', '"gloo"')
        untrained = re.sub(r"for step in range\(\d\)", "for step in range(0)", on_gloo)
        weights = []
        for port, program in zip(own_ports, (shown, untrained, on_gloo, with_sgd), strict=True):
            os.environ["MASTER_PORT"] = str(port)
            torch.manual_seed(rank)
            names: dict[str, Any] = {"__name__": "__main__"}
            exec(compile(program, name, "exec"), names)
            weights.append(torch.cat([local(weight).flatten() for weight in names["model"].parameters()]))
        _, start, plain, coded = weights
        moved = plain - start
        distances[name] = float((coded - plain).norm() / moved.norm())
        assert abs(float((coded - start) @ moved / (moved @ moved)) - 1) < 0.005, name
    return distances


def local(weight: torch.Tensor) -> torch.Tensor:
    return (weight.to_local() if isinstance(weight, DTensor) else weight).detach()


def test_recipes_for_torch() -> None:
    """They train as on Gloo but for the codec's relative error: .076 of one crossing, .13 where the result of an
    all-reduce is coded, too; less where steps are exact.
    """
    assert sorted(RECIPES) == ["attach.py", "ddp.py", "hsdp.py", "muon.py", "tensor_parallel.py"]
    ports = [[ranks.free_port() for _ in range(4)] for _ in sorted(RECIPES)]
    for of_rank in ranks.run(run_programs, 4, ports, env={"ISTHMUS_NODES": "2x2"}):
        assert all(0.05 < coded < 0.13 for coded in of_rank.values()), of_rank


# --- docs/quant.md: the rotated code is what codec `quant` does ---


BITS = range(1, 8)
NUM_GROUPS = 64
NUM_ELEMENTS = 128 * NUM_GROUPS
OF_64_BITS = (1 << 64) - 1
Rows = npt.NDArray[np.float64]


def rows_of_gradients() -> Rows:
    rows = np.random.default_rng(1).standard_normal((NUM_GROUPS, 128)) ** 3
    return rows.astype(np.float32).astype(np.float64)


def received(rank: int, world_size: int) -> dict[int, Rows]:
    """Reduce zeros of rank 0 and the rows of rank 1: what rank 0 gets is what arrives of these, by number of bits."""
    ranks.init("gloo")
    gradient = torch.zeros(world_size * NUM_ELEMENTS)
    if rank == 1:
        gradient[:NUM_ELEMENTS] = torch.from_numpy(rows_of_gradients()).flatten()
    found = {}
    for bits in BITS:
        options = isthmus.Options(nodes="2x1", bits=bits, min_elements=0)
        shard = torch.empty(NUM_ELEMENTS)
        with isthmus.unit("x"):
            dist.reduce_scatter_tensor(shard, gradient, group=dist.new_group(backend="isthmus", pg_options=options))
        found[bits] = shard.numpy().astype(np.float64).reshape(-1, 128)
    finish()
    return found


def signs_of_first_packet() -> Rows:
    """The signs that node 1 draws in the first step of unit "x": docs/packet_format.md."""
    hashed = 0xCBF29CE484222325  # FNV-1a, of elements, float32, reduce-scatter, no layout, and the name
    for byte in struct.pack("<qBBQ", 2 * NUM_ELEMENTS, 1, 0, 0) + b"x":
        hashed = (hashed ^ byte) * 0x100000001B3 & OF_64_BITS
    seed = mix(mix(hashed ^ 0xD1342543DE82EF95) + (1 << 8) & OF_64_BITS)
    signs = np.empty((NUM_ELEMENTS // 512, 32, 16))
    for block in range(len(signs)):
        for column in range(16):
            word = mix(seed + 0x9E3779B97F4A7C15 * (8 * block + column // 2 + 1) & OF_64_BITS) >> 32 * (column % 2)
            signs[block, :, column] = [-1 if word >> row & 1 else 1 for row in range(32)]
    return signs.reshape(-1, 128)


def test_the_rotated_code_is_what_arrives_over_the_backend() -> None:
    shown: dict[str, Any] = {}
    exec(programs("docs/quant.md")["rotated.py"], shown)
    for bits, arrived in ranks.run(received, 2)[0].items():
        expected = shown["arrives"](rows_of_gradients(), signs_of_first_packet(), bits)
        # Scales cross as bfloat16.
        np.testing.assert_allclose(arrived, expected, rtol=2**-8, err_msg=f"{bits} bits")


# --- docs/checkpoints.md ---


OF_CHECKPOINTS = programs("docs/checkpoints.md")
KILLED_ONCE = Path(__file__).with_name("killed_once.py")
FUNCTIONS = re.findall(r"```python\n(def .*?)```", (ROOT / "docs/checkpoints.md").read_text(), re.DOTALL)


def execute(rank: int, world_size: int, program: str, arguments: tuple[str, ...]) -> str:
    sys.argv[1:] = arguments
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(program, "program.py", "exec"), {"__name__": "__main__"})
    return printed.getvalue()


def run(program: str, num_ranks: int, nodes: str, *arguments: str, **settings: str) -> str:
    env = {"ISTHMUS_NODES": nodes, "ISTHMUS_CODEC": "tagc", "ISTHMUS_MIN_ELEMENTS": "1000", **settings}
    return "".join(ranks.run(execute, num_ranks, program, arguments, env=env))


def test_training_is_resumed_with_residuals_on_as_many_ranks_alone(tmp_path: Path) -> None:
    program, checkpoint = OF_CHECKPOINTS["resume.py"], str(tmp_path / "checkpoint")
    assert "restored" not in run(program, 4, "2x2", checkpoint)
    assert "4 restored, 0 dropped" in run(program, 4, "2x2", checkpoint)
    assert "0 restored, 4 dropped" in run(program, 2, "2x1", checkpoint)


def run_by_agents(program: Path, folder: Path, **settings: str) -> list[str]:
    """Run it under two agents of torchrun, each a node with one rank; return what each of them printed."""
    torchrun = ("-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--max-restarts=3")
    meeting = ("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{ranks.free_port()}", "--local-addr=127.0.0.1")
    script = (KILLED_ONCE, folder / "was killed", program, folder / "checkpoints")
    agents = [
        subprocess.Popen(
            [sys.executable, *torchrun, *meeting, *script],
            env=os.environ | {"OMP_NUM_THREADS": "1"} | settings,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(2)
    ]
    outputs = [agent.communicate(timeout=HANG_S)[0] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], "\n".join(outputs)
    return outputs


def test_ranks_that_agents_start_again_have_the_bits_of_an_uninterrupted_run(tmp_path: Path) -> None:
    settings = {"ISTHMUS_CODEC": "quant", "ISTHMUS_ERROR_FEEDBACK": "on", "ISTHMUS_WEIGHTS": "delta"}
    program = tmp_path / "resume.py"
    program.write_text(OF_CHECKPOINTS["resume.py"])
    uninterrupted = run(program.read_text(), 2, "2x1", str(tmp_path / "uninterrupted"), **settings)
    restarted = run_by_agents(program, tmp_path, **settings)
    losses = [re.findall(r"rank \d, step \d: loss .*", text) for text in (uninterrupted, "".join(restarted))]
    assert len(losses[0]) == len(set(losses[0])) == 2 * 6
    assert set(losses[0]) == set(losses[1]) and len(losses[1]) > len(losses[0])  # steps after the checkpoint, again
    for file in ("__0_0.distcp", "__1_0.distcp"):  # weights, moments, residuals
        assert (tmp_path / "checkpoints/6" / file).read_bytes() == (tmp_path / "uninterrupted/6" / file).read_bytes()
    for text in restarted:
        assert "4 restored, 0 dropped" in text
        *_, last = re.findall(r"crossed whole: (.*)", text)
        assert last == "{'the first gather': 4}"


def test_files_of_single_ranks_are_loaded(tmp_path: Path) -> None:
    (functions,) = FUNCTIONS
    imports, rest = OF_CHECKPOINTS["resume.py"].split("folder =", 1)
    before, _, steps, _ = re.split(r"(?=# torch writes)|(?=for step)|(?=    print\(f\"rank)", rest)
    after = """
save(model, optimizer, folder)
before = isthmus.state_dict(model)
isthmus.clear_residuals(model)
load(model, optimizer, folder)
after = isthmus.state_dict(model)
assert len(before) == 5 and before.keys() == after.keys()
assert all(torch.equal(before[key], after[key]) for key in before if "/" in key)
dist.destroy_process_group()
"""
    run(f"{imports}\n{functions}\ndone = 0\nfolder ={before}{steps}{after}", 2, "2x1", str(tmp_path))
