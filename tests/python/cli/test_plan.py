"""`isthmus plan`: what it prints, draws and refuses, and where links come from."""

import re
import sys

import pytest
from matplotlib.figure import Figure
from typer.testing import CliRunner

from isthmus import _topology
from isthmus.cli.main import app
from isthmus.model import models
from isthmus.plan.assumptions import INPUT_BUFFERS, OWNED, of_machine, resolve
from isthmus.plan.picture import drawn_as
from isthmus.plan.strategies import ARMS, DEFAULT_STRATEGIES, PIPELINE, STRATEGIES
from python.cli.planned import report, run
from support.places import ROOT

MACHINES = ROOT / "topology/machines"
FACTS = ("nodes", "ranks_per_node", "inter_gbit_s", "intra_gbit_s", "inter_latency_us", "intra_latency_us")
GIVEN = ["--inter", "25gbit", "--intra", "600gbit"]
LLAMA = ["--preset", "llama2-7b", *GIVEN]


def test_input_buffers_are_by_default_those_that_prepare_sets():
    assert report(*LLAMA)["input_buffers"] == INPUT_BUFFERS == models.INPUT_BUFFERS


def test_tables_and_verdict():
    code, out = run(*LLAMA)
    assert code == 0
    assert "llama2-7b: 6,738,415,616 parameters in 33 units, on 2 nodes x 8 ranks" in out
    assert "plain strategies on nccl (true rings)" in out
    plain = ("ddp", "fsdp", "hsdp", "fsdp-node")
    on_isthmus = ("none", "flat-tagc", "tagc", "tagc-node", "quant", "quant-node", "full")
    for name in (*plain, *on_isthmus, "hsdp-none", "hsdp-tagc", "hsdp-quant"):
        assert f" {name} " in out
    assert "At 25 Gbit/s full is best" in out
    assert "Bytes saved with a lossy codec cost accuracy" in out
    assert "compared with one GPU (docs/plan.md), never with a real network" in out


def test_json_holds_what_the_tables_say_and_more():
    found = report(*LLAMA, "--memory-gb", 12)
    assert found["model"] == {"name": "llama2-7b", "parameters": 6738415616, "trained": 6738415616, "units": 33}
    assert found["cluster"] == {"nodes": 2, "ranks_per_node": 8}
    fsdp = found["strategies"]["fsdp"]
    assert fsdp["node_bytes_per_step"] == sum(fsdp["node_bytes"].values())
    assert fsdp["step_s"] <= fsdp["serial_s"]
    assert fsdp["memory"]["total"] == sum(value for name, value in fsdp["memory"].items() if name != "total")
    assert (fsdp["fits"], found["strategies"]["ddp"]["fits"]) == (True, False)
    assert found["winner"] == "full"
    assert all(1 <= crossover["inter_gbit_s"] <= 800 for crossover in found["crossovers"])
    assert found["crossovers"][-1]["above"] == "fsdp"


def test_other_widths_are_strategies_of_their_own():
    found = report(*LLAMA, "--strategies", "hsdp-quant8,hsdp-quant,hsdp-quant3,hsdp-quant2,hsdp-quant1,full3")
    sent = {name: strategy["node_bytes"]["reduction"] for name, strategy in found["strategies"].items()}
    bits = {"hsdp-quant8": 8, "hsdp-quant": 4, "hsdp-quant3": 3, "hsdp-quant2": 2, "hsdp-quant1": 1}
    for name, width in bits.items():
        exact_bits = 16 * sent[name] / sent["hsdp-quant"] * 4 / 16  # of codes and scales, by those of 4 bits
        assert exact_bits == pytest.approx(width, abs=0.15)
        assert found["strategies"][name]["isthmus"]["bits"] == width
    assert found["strategies"]["full3"]["isthmus"] == found["strategies"]["hsdp-quant3"]["isthmus"] | {
        "weights": "delta"
    }
    assert found["strategies"]["hsdp-quant1"]["description"] == "as hsdp-quant, with 1 bit"


def test_muon_gets_the_bits_that_nobody_sees_in_its_losses():
    def quant_bits(*arguments):
        strategies = report(*LLAMA, "--optimizer", *arguments)["strategies"].items()
        return {name: s["isthmus"]["bits"] for name, s in strategies if (s["isthmus"] or {}).get("codec") == "quant"}

    by_name = {"quant8": 8, "quant-node8": 8, "full8": 8, "hsdp-quant8": 8}
    assert quant_bits("muon") == by_name
    assert set(quant_bits("adamw").values()) == {4}
    asked = "tagc,quant-last,hsdp-quant-last,ddp-quant,hsdp-quant3"
    assert quant_bits("muon", "--micro-batches", 4, "--strategies", asked) == {
        "quant8-last": 8,
        "hsdp-quant8-last": 8,
        "ddp-quant8": 8,
        "hsdp-quant3": 3,
    }
    others = [name for name in DEFAULT_STRATEGIES if STRATEGIES[name].codec != "quant"]
    both = [report(*LLAMA, "--optimizer", optimizer)["strategies"] for optimizer in ("adamw", "muon")]
    assert [both[1][name] for name in others] == [both[0][name] for name in others]
    assert len(both[1]) == len(others) + len(by_name)
    assert "Muon: 8 bits in place of 4: docs/choosing.md." in run(*LLAMA, "--optimizer", "muon")[1]
    assert "Muon" not in run(*LLAMA)[1]


def test_with_micro_batches_each_strategy_comes_both_ways():
    code, out = run(*LLAMA, "--micro-batches", 4)
    assert code == 0
    table = out.split("Seconds a step")[0]
    assert (table.count(" each of 4 "), table.count(" the last of 4 ")) == (7, 6)
    assert (
        "hsdp-last, hsdp-quant-last: reduced between nodes in the last of 4 micro-batches, by "
        "model.set_requires_all_reduce(is_last); until then a rank keeps a shard that is reduced within the node: "
        "1.68 GB. The others are reduced in every micro-batch."
    ) in out
    assert "by model.set_requires_gradient_sync(is_last); until then a rank keeps whole gradients of the model" in out
    found = report(*LLAMA, "--micro-batches", 4)
    for name, last in (("hsdp", "hsdp-last"), ("hsdp-quant", "hsdp-quant-last")):
        each, last = found["strategies"][name], found["strategies"][last]
        assert each["node_bytes"]["reduction"] == 4 * last["node_bytes"]["reduction"]
        assert (each["reduced_in_last"], last["reduced_in_last"]) == (False, True)
        assert each["memory"]["deferred"] == 0 < last["memory"]["deferred"]
        assert last["step_s"] < each["step_s"]


def test_one_micro_batch_says_nothing_of_it():
    _, out = run(*LLAMA)
    assert "micro-batch " not in out and "deferred" not in out


def test_where_little_is_trained_it_says_hsdp_and_nothing_else():
    code, out = run(*LLAMA, "--trainable", "0.002")
    assert code == 0
    assert "llama2-7b: 6,738,415,616 parameters in 33 units, 13,4" in out
    assert "HSDP and nothing else: 0.20% of the parameters are trained, and only their gradients cross." in out
    assert "nothing else" not in run(*LLAMA, "--trainable", "1", "--strategies", "hsdp")[1]
    found = report(*LLAMA, "--trainable", "*.q_proj,*.v_proj")
    assert found["model"]["trained"] == 2 * 32 * 4096**2
    assert found["compute"]["forward_share"] > report(*LLAMA)["compute"]["forward_share"]


def test_a_pipeline_is_a_strategy_where_its_width_is_known(tmp_path, monkeypatch):
    found = report(*LLAMA, "--inter", "1gbit", "--micro-batches", 8)
    assert found["winner"] == "pp"
    assert found["verdict"][-1].startswith("pp takes a model that is cut into stages")
    assert any(note.startswith("pp: 2 stages, 16 micro-batches through each: 6% of a step") for note in found["notes"])
    assert "pp" not in report(*LLAMA)["strategies"]
    assert "pp" in report(*LLAMA, "--strategies", "fsdp,pp")["strategies"]
    assert "pp" not in report(*LLAMA, "--nodes", 33, "--micro-batches", 8)["strategies"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made_blocks.py").write_text(
        "from torch import nn\nmodel = lambda: nn.Sequential(nn.ModuleList(nn.Linear(64, 64) for _ in '12'))\n"
    )
    module = ["--module", "made_blocks:model", *GIVEN, "--micro-batches", 8]
    assert "pp" not in report(*module)["strategies"]
    assert "pp" in report(*module, "--width", 64)["strategies"]


def test_one_rank_a_node_saves_no_memory_with_hsdp():
    note = "One rank a node: HSDP has nothing to shard over and saves no memory"
    assert note in run(*LLAMA, "--ranks-per-node", 1)[1]
    assert note not in run(*LLAMA)[1]
    found = report(*LLAMA, "--ranks-per-node", 1, "--micro-batches", 2)["strategies"]
    assert found["pp"]["memory"]["total"] < 0.6 * found["hsdp"]["memory"]["total"]


def test_strategies_come_in_one_list_in_several_or_by_themselves():
    expected = ["fsdp", "hsdp", "full"]
    for given in (["fsdp,hsdp,full"], ["fsdp", "hsdp, full"], expected):
        found = report(*LLAMA, *(word for names in given for word in ("--strategies", names)))
        assert list(found["strategies"]) == expected


def test_tables_keep_their_columns_and_sentences_do_not_wrap_in_a_pipe():
    result = CliRunner().invoke(app, ["plan", *LLAMA], env={"COLUMNS": "40"})
    assert result.exit_code == 0
    assert "…" not in result.output
    assert re.search(r"^  hsdp-quant( +\d+\.\d\d){6} *$", result.output, re.MULTILINE)
    assert "\n- Bytes are tested against counters of real runs. Times are a model, compared with one" in result.output


def test_the_picture_has_a_line_a_strategy_the_crossovers_and_the_link(tmp_path, monkeypatch):
    pictures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path: pictures.append((figure, path)))
    given = [*LLAMA, "--inter", "0.5gbit", "--memory-gb", 24, "--strategies", "fsdp,hsdp,hsdp-quant3,ddp"]
    found = report(*given, "--plot", tmp_path / "plan.png")
    ((figure, path),) = pictures
    assert path == tmp_path / "plan.png"
    (axes,) = figure.axes
    lines = {line.get_label(): line for line in axes.lines}
    assert {"fsdp", "hsdp", "hsdp-quant3", "ddp (does not fit)"} < set(lines)
    best = f"hsdp-quant3, {found['strategies']['hsdp-quant3']['step_s']:.3g} s"
    assert list(lines[f"0.5 Gbit/s: {best}"].get_xdata()) == [0.5, 0.5]
    for name in ("fsdp", "hsdp"):
        rates, seconds = lines[name].get_data()
        assert (rates[0], rates[-1], len(rates)) == (0.5, 800, 118)
        assert seconds[0] == found["strategies"][name]["step_s"]
    dots = [line.get_data() for line in axes.lines if line.get_marker() == "o"]
    assert [x for (x,), _ in dots] == [crossover["inter_gbit_s"] for crossover in found["crossovers"]]
    for ((x,), (y,)), crossover in zip(dots, found["crossovers"], strict=True):
        at = report(*given, "--inter", f"{x}gbit")["strategies"][crossover["above"]]["step_s"]
        assert y == pytest.approx(at, rel=1e-6)
    assert figure.get_suptitle().splitlines()[1] == found["verdict"][1]


def test_each_strategy_and_arm_has_a_line_of_its_own():
    lines = {name: drawn_as(strategy) for name, strategy in (STRATEGIES | ARMS | {"pp": PIPELINE}).items()}
    named = [*map(tuple, (lines[name].items() for name in (*DEFAULT_STRATEGIES, "ddp-bf16", "ddp-quant", "pp")))]
    assert len({*named}) == len(named)


def test_a_picture_is_written_in_the_form_that_its_name_asks_for(tmp_path):
    few = [*LLAMA, "--strategies", "fsdp,pp,quant8-last", "--micro-batches", 2]
    for form, begins in (("png", b"\x89PNG"), ("svg", b"<?xml")):
        path = tmp_path / f"plan.{form}"
        assert run(*few, "--plot", path)[0] == 0
        assert path.read_bytes().startswith(begins)
    assert run(*few, "--nodes", 1, "--plot", path)[0] == 0
    assert run(*few, "--memory-gb", 0.001, "--plot", path)[0] == 0
    code, out = run(*few, "--plot", tmp_path / "plan.zap")
    assert code == 2 and "Format 'zap' is not supported" in out
    code, out = run(*few, "--plot", tmp_path / "no/plan.png")
    assert code == 1 and "no/plan.png: No such file" in out


def test_without_matplotlib_a_picture_is_refused_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "isthmus.plan.picture", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    code, out = run("--module", "no.such:thing", *GIVEN, "--plot", tmp_path / "plan.png")
    assert code == 1 and "this command needs `pip install isthmus[bench]`" in out
    assert run(*LLAMA)[0] == 0


def test_on_fast_links_it_says_that_compression_does_not_pay():
    found = report("--preset", "llama2-7b", "--inter", "3200gbit", "--intra", "3600gbit")
    assert found["winner"] == "fsdp"
    assert found["verdict"][0].startswith("At 3200 Gbit/s Isthmus does not pay: fsdp takes")


def test_on_one_node_nothing_crosses():
    found = report("--preset", "llama2-7b", "--nodes", 1, "--intra", "600gbit")
    assert {strategy["node_bytes_per_step"] for strategy in found["strategies"].values()} == {0}
    assert any(note.startswith("One node: nothing crosses") for note in found["notes"])


def test_extra_bytes_of_gloo_are_reported():
    fsdp = {
        backend: report(*LLAMA, "--backend", backend, "--strategies", "fsdp")["strategies"]["fsdp"]["node_bytes"]
        for backend in ("nccl", "gloo")
    }
    assert fsdp["gloo"]["reduction"] == 2 * fsdp["nccl"]["reduction"]
    assert fsdp["gloo"]["forward"] == fsdp["nccl"]["forward"]
    assert "its reduce-scatter is an all-reduce" in run(*LLAMA, "--backend", "gloo")[1]


def test_a_model_by_its_module(tmp_path, monkeypatch):
    (tmp_path / "made_module.py").write_text(
        "from isthmus.benchmarks.common.model import *\n"
        "model = lambda: ByteGpt(ModelShape(width=128, num_layers=2, context=8))\n"
    )
    monkeypatch.chdir(tmp_path)
    assert report("--module", "made_module:model", *GIVEN)["model"]["units"] == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*GIVEN], "expected one of --preset (llama2-7b"),
        ([*LLAMA, "--module", "a:b"], "expected one of --preset"),
        (["--preset", "llama9", *GIVEN], "preset 'llama9': expected one of llama2-7b, llama2-13b"),
        (["--module", "no.such:thing", *GIVEN], "module 'no.such:thing' failed"),
        (["--preset", "llama2-7b"], "the speed of links between nodes is not known (no --machine): give --inter"),
        (["--preset", "llama2-7b", "--inter", "1gbit"], "the speed of links within a node is not known"),
        ([*LLAMA, "--strategies", "fsdp,zap"], "strategy 'zap': expected some of"),
        ([*LLAMA, "--strategies", "fsdp", "--strategies", "hsdp,fsdp"], "strategy 'fsdp' is named twice"),
        ([*LLAMA, "--micro-batches", "0"], "micro_batches 0: expected 1 to 4096"),
        (
            [*LLAMA, "--strategies", "hsdp-last"],
            "strategy 'hsdp-last' reduces in the last micro-batch: micro_batches 1",
        ),
        ([*LLAMA, "--trainable", "*lora_*"], "trainable '*lora_*': no parameter of llama2-7b has such a name; it has"),
        ([*LLAMA, "--width", "0"], "width 0: expected 1 to 1048576"),
        ([*LLAMA, "--backend", "mpi"], "backend 'mpi': expected one of nccl, gloo"),
        ([*LLAMA, "--optimizer", "sgd"], "optimizer 'sgd': expected one of adamw, muon"),
        ([*LLAMA, "--dtype", "fp8"], "dtype 'fp8': expected one of bf16, fp16, fp32"),
        ([*LLAMA, "--memory-gb", "0"], "memory_gb 0: expected 0.001"),
        (
            [*LLAMA, "--machine", "/no/such.xml"],
            "machine '/no/such.xml': expected a file, or without --islands one of 8gpu",
        ),
        ([*LLAMA, "--islands"], "machine '': expected a file, or without --islands one of"),
        (
            [*LLAMA, "--islands", "--machine", str(MACHINES / "dgx-a100.nccl.xml")],
            "--islands: dgx-a100: there is one island: if each GPU is to be a node, give --nodes",
        ),
        (
            [
                "--preset",
                "llama2-7b",
                "--intra",
                "9gbit",
                "--islands",
                "--machine",
                str(MACHINES / "8gpu-pcie-vm.topo.txt"),
            ],
            "links between nodes is not known (8gpu-pcie-vm (nvidia-smi topo -m), islands by NUMA node): give --in",
        ),
        (
            ["--preset", "llama2-7b", "--machine", str(MACHINES / "dgx-h100.topo.txt"), "--inter", "1gbit"],
            "is not known (dgx-h100 (nvidia-smi topo -m)): give --intra, as `isthmus topo --measure` prints it",
        ),
    ],
)
def test_bad_input_is_one_message_with_value_and_range(arguments, message):
    code, out = run(*arguments)
    assert code in (1, 2)
    assert message in out


def test_each_figure_has_its_source():
    found = report(*LLAMA)
    assert found["cluster"] == {"nodes": 2, "ranks_per_node": 8}
    assert (found["links"]["inter_latency_us"], found["links"]["intra_latency_us"]) == (20, 5)
    assert found["sources"] == {name: "given" if name.endswith("gbit_s") else "default" for name in FACTS}
    assert "Default: nodes 2, ranks_per_node 8, inter_latency_us 20, intra_latency_us 5." in found["notes"]
    assert "Given: inter_gbit_s 25, intra_gbit_s 600." in found["notes"]


@pytest.fixture
def machine(tmp_path):
    """Return what makes a machine of four GPUs and two NICs, one of each for every second GPU."""

    def make(capability=80, nic_mbit_s=200_000):
        nvlink = '<nvlink target="0000:99:00.0" count="12" tclass="0x068000"/>'
        gpus = [
            f'<pci busid="000{node}:0{n}:00.0" class="0x030200"><gpu sm="{capability}">{nvlink}</gpu></pci>'
            for node in range(2)
            for n in range(2)
        ]
        nic = '<pci busid="000{}:61:00.0" class="0x020700"><nic><net speed="{}"/></nic></pci>'
        nodes = (f"{''.join(gpus[2 * n : 2 * n + 2])}{nic.format(n, nic_mbit_s)}" for n in range(2))
        path = tmp_path / "made.xml"
        cpus = "".join(f'<cpu numaid="{number}">{inside}</cpu>' for number, inside in enumerate(nodes))
        path.write_text(f'<system version="1">{cpus}</system>')
        return _topology.read_machine(str(path))

    return make


def test_a_machine_gives_all_rails_and_the_slowest_way_between_its_gpus(machine):
    _, facts = of_machine(machine(), None)
    assert facts == {"ranks_per_node": 4, "inter_gbit_s": 400.0, "intra_gbit_s": 2400.0}
    _, two = of_machine(machine(), 2)
    assert (two["ranks_per_node"], two["inter_gbit_s"]) == (2, 200.0)  # both nearest to the first NIC
    unknown = {"inter_gbit_s": None, "intra_gbit_s": None}
    assert of_machine(machine(120, -1), None)[1] == {"ranks_per_node": 4} | unknown


@pytest.mark.parametrize(
    ("file", "given", "source"),
    [
        ("dgx-a100.nccl.xml", [], "dgx-a100 (nccl xml)"),
        ("power8-p100.hwloc.xml", ["--inter", "100gbit", "--ranks-per-node", "2"], "power8-p100 (hwloc xml)"),
        ("dgx-h100.topo.txt", GIVEN, "dgx-h100 (nvidia-smi topo -m)"),
    ],
)
def test_recorded_machines_of_all_formats_are_read(file, given, source):
    found = report("--preset", "llama2-7b", "--machine", MACHINES / file, *given)
    assert found["sources"]["ranks_per_node"] == ("given" if "--ranks-per-node" in given else source)
    expected = {"dgx-a100.nccl.xml": 2400.0, "power8-p100.hwloc.xml": 320.0}.get(file, 600.0)
    assert found["links"]["intra_gbit_s"] == expected


def test_islands_are_the_nodes():
    found = report("--preset", "llama2-7b", "--machine", MACHINES / "8gpu-a100-pcie.hwloc.xml", "--islands")
    assert found["cluster"] == {"nodes": 2, "ranks_per_node": 4}
    links = found["links"]
    assert (round(links["inter_gbit_s"], 3), round(links["intra_gbit_s"], 3)) == (252.062, 252.062)
    assert found["sources"]["nodes"] == "8gpu-a100-pcie (hwloc xml), islands by PCIe switch"


@pytest.mark.parametrize("name", OWNED)
def test_machines_that_many_have_need_no_file(name):
    found = report("--preset", "llama2-7b", "--machine", name)
    ranks, inter, intra = OWNED[name]
    assert found["cluster"] == {"nodes": 2, "ranks_per_node": ranks}
    assert found["links"]["inter_gbit_s"] == inter
    assert intra in (None, found["links"]["intra_gbit_s"])


def test_options_come_before_files_and_files_before_defaults(machine):
    given = {"nodes": 8, "inter_gbit_s": 3.0, "intra_latency_us": 0.0}
    cluster, links, sources = resolve(("given", given | {"intra_gbit_s": None}), of_machine(machine(), 2))
    assert (cluster.nodes, cluster.ranks_per_node) == (8, 2)
    assert (links.inter_gbit_s, links.intra_gbit_s, links.inter_latency_us, links.intra_latency_us) == (3, 2400, 20, 0)
    assert {name for name, source in sources.items() if source == "given"} == set(given)
    alone, _, _ = resolve(("given", {"nodes": 1, "ranks_per_node": 1}), ("nothing", {}))
    assert alone.world_size == 1
