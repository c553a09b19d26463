"""Tables of measurements are what the recorded runs beside them give."""

import json
import re
import shlex
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, median
from typing import Any

import pytest

from isthmus.benchmarks.convergence.results import read_results
from isthmus.benchmarks.convergence.summary import half_width, summarise
from isthmus.plan.assumptions import CodecSpeed, codec_speeds, weight_bits_at
from python.cli.planned import report
from support.places import ROOT

DOCS = ROOT / "docs"
Row = tuple[str, ...]


def table(page: Path, *head: str) -> list[Row]:
    """The rows, cell by cell, of the table of a page whose head begins with these cells."""
    lines = page.read_text().splitlines()
    begins = "|" + "".join(f" {cell} |" if cell else " |" for cell in head)
    (first,) = (number for number, line in enumerate(lines) if line.startswith(begins))
    rows = []
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        rows.append(tuple(cell.strip().replace("**", "") for cell in line.strip("|").split("|")))
    return rows


def filled(rows: list[Row], columns: int) -> Iterator[Row]:
    """Rows whose empty cells among the first `columns` are those of the row above."""
    above: Row = ("",) * columns
    for row in rows:
        above = tuple(cell or old for cell, old in zip(row, above, strict=False))[:columns]
        yield above + row[columns:]


# --- Losses


def gap(values: list[float]) -> str:
    width = f" ± {100 * half_width(values):.2f}" if len(values) > 1 else ""
    return f"{fmean(values):+.2%}{width}"


def arm_of(layout: str, codec: str) -> str:
    """The benchmark's name of a row."""
    if "two ranks a node" in codec:
        return "quant-4-2x2"
    bits = re.search(r"(\d) bits?", codec)
    suffix = f"{bits[1]}{'-fb' if 'feedback' in codec else ''}" if bits else ""
    steps = re.search(r"DiLoCo, (\d+)", layout)
    if steps:
        return f"diloco-{steps[1]}" + (f"-{suffix}" if suffix else "")
    prefix = next((f"{name.lower()}-" for name in ("HSDP", "DDP") if name in layout), "")
    return f"{prefix}quant-{suffix}"


def recorded() -> dict[tuple[str, int, str, str], Any]:
    """Summaries of convergence.jsonl by arm, nodes, dtype and optimizer, of the setting that the tables have."""
    found = defaultdict(list)
    for run, _, arms in summarise(read_results(DOCS / "convergence.jsonl")):
        setting = run.setting
        if setting.steps == 500 and not setting.link:
            for arm in arms:
                found[arm.arm, setting.nodes, setting.dtype, "Muon" if run.muon_lr else "AdamW"].append(arm)
    return {key: max(arms, key=lambda arm: len(arm.gaps)) for key, arms in found.items()}


def test_losses_in_float32_are_those_of_the_runs() -> None:
    runs = recorded()
    rows = list(filled(table(DOCS / "convergence.md", "optimizer, layout"), 1))
    assert len(rows) > 25
    for layout, codec, bits, shown in rows:
        nodes = 4 if "4 nodes" in layout else 2
        arm = runs[arm_of(layout, codec), nodes, "fp32", "Muon" if "Muon" in layout else "AdamW"]
        assert shown == f"{gap(list(arm.gaps))} ({len(arm.gaps)})", (layout, codec)
        assert float(bits) == pytest.approx(arm.crossing_bits, abs=0.0051), (layout, codec)


def test_diloco_against_its_own_exact_arm() -> None:
    ((run, _, arms),) = (
        group
        for group in summarise(read_results(DOCS / "convergence.jsonl"), "diloco-10")
        if group[0].setting.steps == 500 and not group[0].muon_lr
    )
    gaps = {arm.arm: gap(list(arm.gaps)) for arm in arms}
    text = " ".join((DOCS / "convergence.md").read_text().split())
    assert run.setting.nodes == 2
    assert f"4 bits {gaps['diloco-10-4']}, with error feedback {gaps['diloco-10-4-fb']}; " in text
    assert f"2 bits {gaps['diloco-10-2']}, with error feedback {gaps['diloco-10-2-fb']}." in text


Earlier = dict[tuple[str, str, int, str, str], dict[int, dict[str, Any]]]


def earlier() -> Earlier:
    """Runs of earlier trainers, by seed, by how they ran, layout, nodes, version of packets and arm."""
    found: Earlier = defaultdict(dict)
    for line in (DOCS / "convergence_earlier.jsonl").read_text().splitlines():
        run = json.loads(line)
        if run["optimizer"] == "adamw" and run["lr"] == 0.002:
            key = (run["processes"], run["layout"], run["nodes"], run["packets"], run["arm"])
            found[key][run["seed"]] = run
    return found


# The arms of earlier trainers whose default was another scale.
EARLIER_ARMS = {"1 bit": "quant-1-unbiased", "3 bits": "quant-3", "tagc": "tagc-10x", "nothing sent": "nothing-sent"}


def test_losses_in_bfloat16_are_those_of_the_runs() -> None:
    old, new = earlier(), recorded()
    rows = list(filled(table(DOCS / "convergence.md", "nodes, collective"), 1))
    assert len(rows) == 15
    for where, codec, bits, shown in rows:
        nodes, layout = int(where[0]), "hsdp" if "HSDP" in where else "fsdp"
        in_one = "one process" in codec
        if layout == "hsdp" and not in_one:
            arm = new["hsdp-quant-4", nodes, "bf16", "AdamW"]
            assert shown == gap(list(arm.gaps)), (where, codec)
            assert float(bits.split()[0]) == pytest.approx(arm.crossing_bits / 2, abs=0.0051)
            continue
        name = next((arm for words, arm in EARLIER_ARMS.items() if words in codec), "")
        if "4 bits" in codec or (in_one and "2 bits" in codec):
            name = f"quant-{4 if '4 bits' in codec else 2}-unbiased"
        elif "2 bits" in codec:
            name = "quant-2"
        packets = "5" if in_one else "6" if "4 bits" in codec else "4"
        key = ("one" if in_one else "ranks", layout, nodes, packets)
        runs, exact = old[(*key, name)], old[(*key, "exact")]
        gaps = [run["val_loss"] / exact[seed]["val_loss"] - 1 for seed, run in runs.items()]
        assert len(gaps) == 6
        digits = 1 if shown.count(".") == 2 and len(shown.split(".")[1].split("%")[0]) == 1 else 2
        expected = f"{fmean(gaps):+.{digits}%} ± {100 * half_width(gaps):.{digits}f}"
        assert shown.split(" (")[0] == expected, (where, codec)
        if name != "nothing-sent":
            each_way = fmean(run["bits"] for run in runs.values()) / (2 if layout == "hsdp" else 1)
            assert float(bits.split()[0]) == pytest.approx(each_way, abs=0.0051), (where, codec)


def test_choosing_repeats_those_rows() -> None:
    rows = filled(table(DOCS / "convergence.md", "optimizer, layout"), 1)
    losses = {f"{layout}, {codec}": shown for layout, codec, _, shown in rows}
    rows = filled(table(DOCS / "convergence.md", "nodes, collective"), 1)
    losses |= {f"{where}, {codec}": shown for where, codec, _, shown in rows}
    default, three, two, one, tagc = (
        losses[f"2, reduce-scatter, {codec}"]
        for codec in (
            "`quant`, 4 bits (default)",
            *(f"`quant`, {bits}" for bits in ("3 bits", "2 bits", "1 bit")),
            "`tagc` 10x, as published but in two tiers",
        )
    )
    muon = {bits: losses[f"Muon, FSDP, {bits} bits"].removesuffix(" (6)") for bits in (4, 6)}
    text = " ".join((DOCS / "choosing.md").read_text().split())
    assert f"under AdamW in bf16 {default} with the default, {three} with 3 bits and {two} with 2" in text
    assert (
        f", {one} with 1 bit, {tagc} with `tagc` 10x; under Muon in float32 {muon[4]} with the default, {muon[6]} "
        in text
    )


def test_ten_million_parameters_seed_by_seed() -> None:
    gaps: dict[str, dict[int, float]] = defaultdict(dict)
    for run, _, _ in summarise(read_results(DOCS / "convergence.jsonl")):
        members = [
            (other, result)
            for other, result in read_results(DOCS / "convergence.jsonl").values()
            if other.compared_with == run.compared_with and other.setting.shape.width == 320
        ]
        exact = {other.seed: result["val_loss"] for other, result in members if other.arm == "exact"}
        for other, result in members:
            name = f"{'Muon' if other.muon_lr else f'AdamW at {other.lr:g}'.replace('0.', '.')} {other.arm}"
            gaps[name][other.seed] = result["val_loss"] / exact[other.seed] - 1
    rows = list(filled(table(DOCS / "convergence.md", "optimizer", "codec", "seed 1"), 1))
    assert len(rows) == 4
    for optimizer, codec, *seeds in rows:
        measured = gaps[f"{optimizer} {arm_of('', codec.split(',')[0] + (' feedback' if 'feedback' in codec else ''))}"]
        assert [f"{measured[seed]:+.2%}" for seed in sorted(measured)] == [seed for seed in seeds if seed], codec
        if " in the mean" in codec:
            assert f"{gap(list(measured.values()))} in the mean" in codec


def test_seconds_a_step_over_slow_links() -> None:
    arms = ("exact", "quant-4", "full", "hsdp-quant-4", "ddp-quant-4", "diloco-10-2-fb", "diloco-50-2-fb")
    steps = dict.fromkeys(arms, 500) | {"diloco-10-2-fb": 600, "diloco-50-2-fb": 670}
    timed = {
        (run.setting.link, run.arm): result["step_s"]
        for run, result in read_results(DOCS / "convergence.jsonl").values()
        if run.setting.link
    }
    rows = table(DOCS / "convergence.md", "", "s a step at 50 Mbit/s")
    for arm, (_, *cells) in zip(arms, rows, strict=True):
        expected = []
        for link in ("50mbit", "10mbit"):
            seconds = timed.get((link, arm))
            expected += [f"{seconds:.3f}", f"{seconds * steps[arm] + 1e-6:.0f}"] if seconds else ["", ""]
        assert [cell.lstrip("0") for cell in cells] == [cell.lstrip("0") for cell in expected], arm


# --- One H200


def megabytes(rows: dict[str, Any], arm: str) -> str:
    """As one figure, or from the least to the most of the links where they differ by more than a hundredth."""
    sent = [median(of["link_sent_bytes"]) / 1e6 for name, of in rows.items() if name.endswith(f"/{arm}")]
    low, high = min(sent), max(sent)
    return f"{low:.0f} to {high:.0f}" if high > 1.01 * low else f"{median(sent):.0f}"


@pytest.mark.parametrize("page", ["README.md", "docs/h200.md"])
def test_steps_on_the_h200_are_those_recorded(page: str) -> None:
    rows = json.loads((DOCS / "h200/link.json").read_text())["ranks share the GPU by MPS"]
    arms = ["fsdp", "hsdp", "tagc", "quant", "full", "hsdp-quant"]
    head = ("arm", "10 Gbit/s") if page != "README.md" else ("", "10 Gbit/s")
    shown = table(ROOT / page, *head)
    if page == "README.md":
        arms = ["fsdp", "hsdp", "quant", "tagc", "full", "hsdp-quant"]
    for arm, (_, *cells) in zip(arms, shown, strict=True):
        seconds = [rows[f"{link}/{arm}"]["seconds"] for link in ("10gbit", "25gbit", "unshaped")]
        assert cells[:3] == [f"{1e3 * median(of):.1f}" for of in seconds], arm
        assert cells[3:] in ([], [megabytes(rows, arm)]), arm


def test_codecs_on_the_h200_are_those_recorded() -> None:
    steps = json.loads((DOCS / "h200/report.json").read_text())["steps"]
    (bench,) = (step for step in steps if step["name"] == "bench")
    settings = {"none": "", "quant": ", 4 bits"} | {
        f"tagc {ratio}x": f", ratio {ratio}, sparsity {sparsity}, cells fp32"
        for ratio, sparsity in ((2, 0.8), (10, 0.9875))
    }
    shown = table(DOCS / "h200.md", "", "64 MiB", "256 MiB")
    assert len(shown) == 10
    for name, *cells in shown:
        codec, dtype, way = name.replace("`", "").split(", ")
        verb = "encode" if way == "encode" else "decode to a shard"
        check = f"{verb}, {codec.split()[0]}, {dtype}{settings[codec]}"
        small, large = (
            next(one["figures"] for one in bench["checks"] if one["check"] == f"{check}, {size} MiB")
            for size in (64, 256)
        )
        expected = [f"{one['us']:,.0f}, {one['% of bound']:.0f}%" for one in (small, large)]
        assert cells == [*expected, f"{large['GB/s of source']:,.0f}"], name


def test_host_and_kernels_on_the_h200_are_those_traced() -> None:
    traces = json.loads((DOCS / "h200/traces.json").read_text())
    names = (
        *("c10d::_reduce_scatter_base_", "c10d::_allgather_base_"),
        *("kernel OfEachPiece QuantizeBlocks", "kernel DequantizeBlocks"),
        *("kernel CompareWeights", "kernel CodeWeights", "kernel DecodeWeights"),
    )
    shown = table(DOCS / "h200.md", "", "`fsdp`", "`quant`")
    for name, (_, *cells) in zip(names, shown, strict=True):
        of_arms = (traces[arm].get(name) for arm in ("fsdp", "quant", "full"))
        assert cells == [f"{of['median_us']:.0f}" if of else "" for of in of_arms], name


def test_a_plan_stands_beside_what_the_h200_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = DOCS / "plan.md"
    (commands,) = re.findall(r"```sh\n(echo .*?)\n```", page.read_text(), re.DOTALL)
    _, module, _, file, *plan = shlex.split(commands.replace("\\\n", ""))
    (tmp_path / file).write_text(module)
    monkeypatch.chdir(tmp_path)
    assert plan[:2] == ["isthmus", "plan"]
    planned = report(*plan[2:])["strategies"]
    rows = json.loads((DOCS / "h200/link.json").read_text())["ranks share the GPU by MPS"]
    shown = table(page, "arm", "s a step, predicted", "measured", "prediction is")
    assert len(shown) == 6
    for arm, predicted, measured, short, megabytes, megabytes_sent in shown:
        name = arm.strip("`")
        assert predicted == f"{planned[name]['step_s']:.3f}".lstrip("0")
        assert megabytes == f"{2 * planned[name]['node_bytes_per_step'] / 1e6:.1f}"
        of = rows[f"10gbit/{name}"]
        seconds = median(of["seconds"])
        assert measured == f"{seconds:.3f}".lstrip("0")
        assert short == f"{1 - float(predicted) / seconds:.0%} short"
        assert float(megabytes_sent) == pytest.approx(median(of["link_sent_bytes"]) / 1e6, abs=0.06)


# --- What `isthmus plan --codec-speed cpu` takes


def test_a_plan_has_the_speeds_of_codecs() -> None:
    speeds, page = codec_speeds("cpu").by_codec, DOCS / "quant.md"
    of_source = {name: float(speed) for name, speed, *_ in table(page, "", "GB/s of source, AVX2")}
    for codec, name in (("none", "`none`"), ("tagc", "`tagc` 10x")):
        assert speeds[codec] == CodecSpeed(of_source[f"{name} encode"], of_source[f"{name} decode"])
    memcpy = re.search(r"memcpy's speed in the same run \(([\d.]+) GB/s", page.read_text())
    assert memcpy
    of_memcpy = {name: cells for name, *cells in table(page, "of memcpy, encode / decode", "SSE2", "AVX2")}
    encode, decode = (float(memcpy[1]) * float(share) for share in of_memcpy["`quant` 4 bits"][1].split(" / "))
    assert [speeds["quant"].encode_gb_s, speeds["quant"].decode_gb_s] == pytest.approx([encode, decode], abs=0.006)


def test_a_plan_has_the_bits_and_the_speed_of_weights() -> None:
    page = DOCS / "weight_updates.md"
    bits = {name: cells for name, *cells in table(page, "learning rate", "1e-6", "1e-5", "1e-4", "3e-4", "1e-3")}
    taken = [weight_bits_at(lr) for lr in (1e-6, 1e-5, 1e-4, 3e-4, 1e-3)]
    assert taken == pytest.approx([float(cell) for cell in bits["`isthmus.weights`"]], abs=0.006)
    timed = {name: cells for name, *cells in table(page, "bits; GB/s to encode, to apply", "1e-6", "1e-5", "1e-4")}
    speed_at = [CodecSpeed(*map(float, cell.split("; ")[1].split(", "))) for cell in timed["`isthmus.weights`"]]
    assert codec_speeds("cpu").by_codec["delta"] == CodecSpeed(2 * speed_at[2].encode_gb_s, 2 * speed_at[2].decode_gb_s)
    ns = [1 / speed.encode_gb_s + 1 / speed.decode_gb_s for speed in speed_at[1:3]]  # of a byte that one other sends
    words = " ".join((DOCS / "weights.md").read_text().split())
    assert f"[{ns[0]:.1f} ns](weight_updates.md#bits) for a byte" in words
    assert f"{ns[1]:.1f} at 1e-4. Over links faster than {8 / ns[0]:.1f} or {8 / ns[1]:.1f} Gbit/s" in words
