"""The examples run: each launcher starts the training as its README says, and Isthmus sees the nodes that it gives."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from isthmus.benchmarks.simulate.network import open_network
from support import ranks, slurm
from support.limits import HANG_S
from support.places import ROOT

pytestmark = pytest.mark.processes
STEPS = ("--steps", "2")
COMPRESSED = "compressed 8 reductions; exact: {'below min_elements': 2}"  # four layers, and the embedding


def environment(**variables: str) -> dict[str, str]:
    """Return what a user with this interpreter in the PATH would have."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ISTHMUS_")}
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    return clean | {"PATH": path, "OMP_NUM_THREADS": "1"} | variables


def output_of(command: Sequence[str | Path], **variables: str) -> str:
    result = subprocess.run(
        command, env=environment(**variables), cwd=ROOT, capture_output=True, text=True, timeout=HANG_S
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr


def assert_trained(output: str, nodes: str) -> None:
    """`nodes`: the map and where it comes from, as a pattern."""
    first, second = (float(loss) for loss in re.findall(r"step [01]: loss ([\d.]+)", output)[:2])
    assert second < first < 6, output  # ln 256 is 5.5
    assert re.search(nodes, output), output
    assert COMPRESSED in output, output


def test_torchrun_on_two_hosts() -> None:
    with open_network(2) as network:
        agents = []
        for node in range(2):
            torchrun = ("-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", f"--node-rank={node}")
            meeting = (f"--master-addr={network.address(0)}", f"--master-port={ranks.free_port()}")
            if agents:
                meeting = agents[0][1]
            command = [*network.command_prefix(node), sys.executable, *torchrun, *meeting, "examples/torchrun/train.py"]
            process = subprocess.Popen(
                [*command, *STEPS],
                env=environment(GLOO_SOCKET_IFNAME=network.interface),
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            agents.append((process, meeting))
        outputs = [process.communicate(timeout=HANG_S)[0] for process, _ in agents]
    assert [process.returncode for process, _ in agents] == [0, 0], outputs
    assert_trained(outputs[0], "2 nodes x 1 rank, in blocks, by torchrun")


@pytest.mark.skipif(bool(slurm.why_none()), reason=slurm.why_none())
def test_sbatch(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with slurm.running_cluster() as cluster:
        # node0 is a name of Slurm's alone here, so the address is given.
        variables = environment(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(ranks.free_port()))
        own = ("--ntasks-per-node=2", f"--output={log}", "examples/slurm/train.sbatch", *STEPS)
        cluster.call("sbatch", *own, **variables)
        # With --wait it asks every half a minute.
        cluster.until("the job has ended", lambda: not cluster.call("squeue", "--noheader").stdout.strip())
    assert_trained(log.read_text(), "2 nodes x 2 ranks, in blocks, by Slurm")


# On two hosts it needs an ssh: tests/python/group/test_launchers.py has what it tells its processes there.
@pytest.mark.skipif(shutil.which("mpirun.openmpi") is None, reason="no mpirun.openmpi")
def test_mpirun() -> None:
    meeting = {"MASTER_PORT": str(ranks.free_port()), "ISTHMUS_NODES": "2x1"}  # the address: all are on one host
    mpirun = ("mpirun.openmpi", "--oversubscribe", "--allow-run-as-root", "-n", "2")
    output = output_of((*mpirun, sys.executable, "examples/torchrun/train.py", *STEPS), **meeting)
    assert_trained(output, "2 nodes x 1 rank, in blocks, by ISTHMUS_NODES")


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
IN_FRAMEWORKS = {
    "ray": ("examples/ray/train_ray.py", "--workers=2", "--cpus-per-worker=.25", *STEPS),
    "lightning": ("examples/lightning/train_lightning.py", "--devices=2", *STEPS),
    # DDP on CPUs: the first three passes are exact.
    "accelerate": (*TORCHRUN, "examples/accelerate/train_accelerate.py", "--steps=5"),
    "transformers": (*TORCHRUN, "examples/transformers/train_trainer.py", *STEPS),
}


WAYS = [(name, way) for name in IN_FRAMEWORKS for way in ((), ("--attach",)) if not (name == "transformers" and way)]


@pytest.mark.parametrize(("framework", "way"), WAYS)
def test_frameworks(framework: str, way: tuple[str, ...]) -> None:
    for name in {framework, *(["accelerate"] if framework == "transformers" else [])}:
        if find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    program = (sys.executable, *IN_FRAMEWORKS[framework], *way)
    output = output_of(program, ISTHMUS_NODES="2x1", RAY_DEDUP_LOGS="0")
    if framework in ("ray", "lightning"):
        assert_trained(output, "2 nodes x 1 rank, in blocks, by ISTHMUS_NODES")
        return
    assert re.search(r"^2 nodes x 1 rank, in blocks, by ISTHMUS_NODES\ncompressed [1-9]", output, re.MULTILINE), output
    losses = [float(loss) for loss in re.findall(r"step \d: loss ([\d.]+)", output)]
    assert framework == "transformers" or (len(losses) == 5 and losses[-1] < losses[0] < 6), output


@pytest.mark.parametrize(("copies", "crosses"), [("1", r"reduce-scatters, .* weights"), ("2", "all-reduces")])
def test_peft(copies: str, crosses: str) -> None:
    pytest.importorskip("peft")
    program = (sys.executable, *TORCHRUN, "examples/peft/train_lora.py", "--steps=4", f"--copies={copies}")
    output = output_of(program, ISTHMUS_NODES="2x1")
    losses = [float(loss) for loss in re.findall(r"step \d: loss ([\d.]+)", output)]
    assert len(losses) == 4 and losses[-1] < losses[0] < 6, output
    assert re.search(rf"^between nodes: [\d.]+ .B \([\d.]+ .B {crosses}[^,]*\)$", output, re.MULTILINE), output
    assert re.search(r"layers.1; [\d,]+ elements\): quant bits=4", output), output


LIGHTHOUSE = (Path(sys.executable).with_name("torchft_lighthouse"), "--min_replicas", "2", "--quorum_tick_ms", "50")


@pytest.mark.parametrize("local_steps", ["0", "2"], ids=["DDP", "DiLoCo"])
def test_torchft(local_steps: str) -> None:
    pytest.importorskip("torchft")
    port = ranks.free_port()
    own = environment(TORCHFT_LIGHTHOUSE=f"http://127.0.0.1:{port}", RUST_LOG="error")
    lighthouse = subprocess.Popen([*LIGHTHOUSE, "--bind", f"127.0.0.1:{port}"], env=own)
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=1")
    replicas = []
    try:
        for number in range(2):
            script = ("examples/torchft/train.py", str(number), "--steps=3", f"--local-steps={local_steps}")
            command = [*torchrun, f"--master-port={ranks.free_port()}", *script]
            replicas.append(
                subprocess.Popen(
                    command, env=own, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
                )
            )
        outputs = [replica.communicate(timeout=HANG_S)[0] for replica in replicas]
    finally:
        lighthouse.kill()
        lighthouse.wait()
    for output in outputs:
        assert re.search(r"^step 2: loss [\d.]+, 2 replica groups$", output, re.MULTILINE), output
        assert re.search(r"compressed [1-9]\d* reductions; sent \d\.\d*[1-9]", output), output


def test_the_config_of_accelerate_has_only_fields_that_it_knows() -> None:
    config = pytest.importorskip("accelerate.commands.config.config_args")
    loaded = config.load_config_from_file(str(ROOT / "examples/accelerate/fsdp.yaml"))  # raises for others
    assert (loaded.num_machines, loaded.fsdp_config["fsdp_version"]) == (2, 2)


def test_torchtitan(tmp_path: Path) -> None:
    """Its trainer, with FSDP2 over two nodes: a gradient divide factor of 1, which arrives as PREMUL_SUM."""
    if find_spec("torchtitan") is None:
        pytest.skip("torchtitan is not installed")
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["block", "node", "packet", "piece", "rail", "shard", "tier"]
    vocabulary = {word: number for number, word in enumerate(["<s>", "</s>", "<unk>", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    assets, texts = tmp_path / "assets", tmp_path / "texts"
    assets.mkdir()
    tokenizer.save(str(assets / "tokenizer.json"))
    (assets / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": "</s>"}')
    texts.mkdir()
    lines = [json.dumps({"text": " ".join(words[first:] * 12)}) for first in range(6) for _ in range(9)]
    (texts / "texts.json").write_text("\n".join(lines))
    started = ("tests/python/docs/torchtitan_on_cpus.py", "examples/torchtitan/train_torchtitan.py")
    model = ("--module=torchtitan_on_cpus", "--config=tiny", "--training.steps=3")
    places = (f"--hf_assets_path={assets}", f"--dataloader.dataset_path={texts}", f"--dump_folder={tmp_path}")
    quiet = {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled"}
    command = (sys.executable, *TORCHRUN, *started, *model, *places)
    output = output_of(command, ISTHMUS_NODES="2x1", ISTHMUS_LOG="info", **quiet)
    losses = {step: float(loss) for step, loss in re.findall(r"step: +(\d) .*?loss: +([\d.]+)", output)}
    assert losses["3"] < losses["1"] < 9, output  # ln 2048 is 7.6
    assert re.search(r"^8 x reduce_scatter \(layers.0, .*\): quant bits=4", output, re.MULTILINE), output


def test_the_train_job_has_only_fields_of_kubeflow() -> None:
    models = pytest.importorskip("kubeflow_trainer_api.models")
    job = pytest.importorskip("yaml").safe_load((ROOT / "examples/kubernetes/trainjob.yaml").read_text())
    assert models.TrainerV1alpha1TrainJob.from_dict(job).to_dict() == job  # a field that it does not know is dropped
    assert (ROOT / job["spec"]["trainer"]["command"][-1]).exists()


def test_weight_updates(tmp_path: Path) -> None:
    if find_spec("safetensors") is None:
        pytest.skip("safetensors is not installed")
    from safetensors.torch import save_file

    old = {"a.weight": torch.randn(300, 40).bfloat16(), "a.bias": torch.zeros(7), "step": torch.tensor(3)}
    new = {"a.weight": old["a.weight"] * 1.01, "a.bias": torch.zeros(7), "step": torch.tensor(4)}
    sides = tmp_path / "trainer", tmp_path / "engine"
    for side in sides:
        side.mkdir()
        save_file(old, side / "old.safetensors")
    save_file(new, sides[0] / "new.safetensors")
    update = tmp_path / "update"
    example = ("examples/weight_updates/send.py", "examples/weight_updates/receive.py")
    said = output_of((sys.executable, example[0], sides[0] / "old.safetensors", sides[0] / "new.safetensors", update))
    assert update.stat().st_size < 12_000 < (sides[0] / "new.safetensors").stat().st_size
    assert said.startswith(f"{update.stat().st_size} bytes, where ")
    output_of((sys.executable, example[1], sides[1] / "old.safetensors", update, sides[1] / "new.safetensors"))
    assert (sides[0] / "new.safetensors").read_bytes() == (sides[1] / "new.safetensors").read_bytes()


def test_engines_of_both_kinds_live_through_a_damaged_and_a_lost_update() -> None:
    said = output_of((sys.executable, "examples/weight_updates/engines.py"))
    for engine in ("Whole", "Patched"):
        told = {int(number): text for number, text in re.findall(rf"^(\d), {engine}: (.*)$", said, re.MULTILINE)}
        assert list(told) == [1, 2, 3, 5, 6]
        assert "corrupt" in told[3] and "it is for other weights" in told[5]
        elements = [int(re.fullmatch(r"\d+ bytes, (\d+) elements", told[number])[1]) for number in (1, 2, 6)]  # type: ignore[index]
        assert all(98_000 < number < 99_000 if engine == "Whole" else 0 < number < 30_000 for number in elements), said
