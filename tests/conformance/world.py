"""Runs the whole table: several worlds of rank processes side by side, for a row mostly waits."""

import sys
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from groups import NODES, WORLD_SIZE
from rows import Row, collective_rows, scenario_rows
from scenarios import SCENARIOS
from verdicts import NAMES, judge_all

from support import ranks
from support.checks import finish

TORCH = ".".join(torch.__version__.split(".")[:2])
WORLDS = 3
# What the first functional collective, or the first scenario, would import in each of all these processes.
ranks.preload("torch._dynamo", "torch.distributed.checkpoint", "torch.distributed.tensor", "torch.distributed.nn")


@dataclass(frozen=True)
class Results:
    verdicts: dict[Row, str]
    two_tier_calls: dict[str, int]  # by kind of collective, on rank 0 of each world

    def failures(self) -> dict[Row, str]:
        return {row: verdict for row, verdict in self.verdicts.items() if verdict not in NAMES}


def all_rows() -> list[Row]:
    return [*collective_rows(), *scenario_rows(list(SCENARIOS))]


def run(rows: Sequence[Row]) -> Results:
    """Judge all rows. Rows of one group shape stay together, so that a world makes few groups."""
    settings: dict[str, list[Row]] = {"off": [], "detail": []}
    for row in sorted(rows, key=lambda row: row.group):
        settings[row.debug].append(row)
    parts = [(part, "OFF") for part in _shared_out(settings["off"], WORLDS)]
    parts.append((settings["detail"], "DETAIL"))
    with ThreadPoolExecutor(len(parts)) as pool:
        outcomes = list(pool.map(lambda part: _run_world(*part), parts))
    verdicts = {
        row: verdict
        for (part, _), (found, _) in zip(parts, outcomes, strict=True)
        for row, verdict in zip(part, found, strict=True)
    }
    calls: dict[str, int] = {}
    for _, of_world in outcomes:
        for kind, number in of_world.items():
            calls[kind] = calls.get(kind, 0) + number
    return Results(verdicts, calls)


def _shared_out(rows: Sequence[Row], shares: int) -> list[Sequence[Row]]:
    size = -(-len(rows) // shares)
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def _run_world(rows: Sequence[Row], debug: str) -> tuple[list[str], dict[str, int]]:
    env = {"ISTHMUS_NODES": NODES, "TORCH_DISTRIBUTED_DEBUG": debug, "TORCH_CPP_LOG_LEVEL": "ERROR"}
    with TemporaryDirectory() as folder:
        try:
            of_ranks = ranks.run(_main, WORLD_SIZE, rows, folder, env=env)
        except AssertionError as error:
            places = {path.name: str(rows[int(path.read_text())]) for path in sorted(Path(folder).iterdir())}
            raise AssertionError(f"{error}\nEach rank was at this row: {places}") from None
    verdicts = [_worst(of_row) for of_row in zip(*(verdicts for verdicts, _ in of_ranks), strict=True)]
    return verdicts, of_ranks[0][1]


def _worst(verdicts: Sequence[str]) -> str:
    for rank, verdict in enumerate(verdicts):
        if verdict not in NAMES:
            return f"rank {rank}: {verdict}"
    return max(verdicts, key=NAMES.index)


def _main(rank: int, world_size: int, rows: Sequence[Row], folder: str) -> tuple[list[str], dict[str, int]]:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    ranks.init()
    with open(Path(folder) / f"rank {rank}", "w") as place:  # where a rank is that dies or hangs

        def begin(index: int) -> None:
            place.seek(0)
            place.write(f"{index}\n")
            place.flush()

        result = judge_all(rows, begin)
    finish()
    return result
