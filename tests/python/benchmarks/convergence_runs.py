"""Tiny runs of `isthmus bench convergence`, and results as they would have."""

from isthmus.benchmarks.convergence.arms import ARMS, BASELINE
from isthmus.benchmarks.convergence.config import Setting
from isthmus.benchmarks.convergence.runs import make_run
from isthmus.benchmarks.convergence.training import validated_steps

TINY = Setting(steps=8, sequences=8, validation_sequences=16, width=64, num_layers=1, context=16)


def write_text(path):
    path.write_bytes(b"".join(b"line %d of a text that repeats itself\n" % (number % 97) for number in range(2000)))


def tiny_run(arm=BASELINE, lr=0.01, seed=1, stage="screen", setting=TINY, link=""):
    return make_run(stage, setting, ARMS[arm], lr, seed, "text", link)


def fake_result(val_loss=2.0, sent_bytes=1000, **more):
    validated = [{"step": step, "loss": val_loss, "sent_bytes": sent_bytes} for step in validated_steps(TINY.steps)]
    return {
        "val_loss": val_loss,
        "validated": validated,
        "steps_done": TINY.steps,
        "sent_bytes": sent_bytes,
        "num_parameters": 100,
        "clipped_share": 0.5,
        "relative_error": 0.25,
        "native_build": "build",
    } | more
