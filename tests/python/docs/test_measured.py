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
