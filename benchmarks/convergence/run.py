"""`isthmus bench convergence`: what reducing gradients in less than 32 bits costs in validation loss.

Two stages: every arm of a table in one process a run (convergence_screen), and a few of them on the real backend
(convergence_finalists). Both append to one results file, and the report is made from that file alone.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from isthmus.bench.convergence_arms import arms_matching
from isthmus.bench.convergence_config import Setting
from isthmus.bench.convergence_finalists import Finals, best_lr, finalists_named, run_finals
from isthmus.bench.convergence_results import ResultsFile
from isthmus.bench.convergence_screen import Screening, screen, why_refused

STAGES = ("screen", "finalists", "both")
_NUM_SEEDS = {"screen": 3, "finalists": 6}
_NODES = {"screen": (2,), "finalists": (2, 4)}


@dataclass(frozen=True)
class ConvergenceConfig:
    """Arguments of `isthmus bench convergence`. None: what the stage has by default.

    setting: optimizer and nodes in it do not matter. Raises ValueError naming what is wrong.
    """

    stage: str
    arms: tuple[str, ...]
    finalists: tuple[str, ...]
    optimizers: tuple[str, ...]
    num_seeds: int | None
    lr: float | None
    half_lr: bool
    nodes: tuple[int, ...] | None
    links: tuple[str, ...]
    setting: Setting
    files: tuple[Path, ...]
    jobs: int

    def __post_init__(self) -> None:
        if self.stage not in STAGES:
            raise ValueError(f"stage '{self.stage}': expected one of {', '.join(STAGES)}")
        if self.num_seeds is not None and not 1 <= self.num_seeds <= 1000:
            raise ValueError(f"seeds {self.num_seeds}: expected 1 to 1000")
        if self.lr is not None and not 0 < self.lr < 10:
            raise ValueError(f"lr {self.lr}: expected above 0 and below 10")
        if self.stage != "finalists":
            self.screenings()
        if self.stage != "screen":
            self.finals(0.1)

    def screenings(self) -> list[Screening]:
        """What the first stage does."""
        arms = tuple(arms_matching(self.arms))
        return [
            Screening(
                replace(setting, nodes=nodes), arms, self._seeds("screen"), self.files, self.jobs, self.lr, self.half_lr
            )
            for setting in self._settings()
            for nodes in self.nodes or _NODES["screen"]
        ]

    def finals(self, lr: float, index: int = 0) -> Finals:
        """What the second stage does with the optimizer of this index."""
        return Finals(
            setting=self._settings()[index],
            arms=finalists_named(self.finalists),
            seeds=self._seeds("finalists"),
            nodes=self.nodes or _NODES["finalists"],
            links=self.links,
            files=self.files,
            lr=lr,
        )

    def _settings(self) -> list[Setting]:
        return [replace(self.setting, optimizer=optimizer) for optimizer in self.optimizers]

    def _seeds(self, stage: str) -> tuple[int, ...]:
        return tuple(range(1, (self.num_seeds or _NUM_SEEDS[stage]) + 1))


def run_convergence(config: ConvergenceConfig, output_dir: Path, console: Console) -> dict[str, str]:
    """Do what the results file in `output_dir` does not have yet. Returns the arms that cannot run, with the reason.

    Raises RankFailure if a run fails; what has finished is in the file.
    """
    refused: dict[str, str] = {}
    with ResultsFile(output_dir / "convergence.jsonl") as results:
        if config.stage != "finalists":
            for screening in config.screenings():
                refused |= screen(screening, results, console)
        if config.stage != "screen":
            for index, optimizer in enumerate(config.optimizers):
                setting = replace(config.setting, optimizer=optimizer)
                lr = config.lr or best_lr(results, setting)
                finals = config.finals(lr, index)
                _check_finalists(finals)
                run_finals(finals, results, output_dir / "logs", console)
    return refused


def _check_finalists(finals: Finals) -> None:
    for arm in finals.arms:
        reason = why_refused(arm, finals.setting)
        if reason:
            raise ValueError(f"finalist {arm.name} cannot run: {reason}")
