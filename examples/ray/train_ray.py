"""Trains examples/torchrun/train.py's model with Ray Train: python examples/ray/train_ray.py --workers 4 [--attach].

By name: Ray makes the process group with TorchConfig's backend. Attached: Ray's own backend stays.
"""

import argparse
import os
from pathlib import Path

import ray
from ray.train import ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

PROGRAMS = Path(__file__).parents[1] / "torchrun"


def train_worker(config: dict) -> None:
    """Run in each worker, after Ray has made the process group."""
    from train import train

    train(Path(config["text"]), config["steps"], config["attach"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--gpus", action="store_true", help="one GPU for each worker")
    parser.add_argument("--cpus-per-worker", type=float, default=1, help="what Ray reserves; may be a part of one")
    parser.add_argument("--text", type=Path, default=argparse.__file__, help="a file to learn, on every host")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--attach", action="store_true", help="stay on Gloo or NCCL, and attach the model")
    arguments = parser.parse_args()
    # Options of Isthmus are variables of the workers: Ray hands those of this shell to no other host.
    options = {name: value for name, value in os.environ.items() if name.startswith("ISTHMUS_")}
    # train.py goes to every host that has a worker. All hosts need isthmus and torch.
    ray.init(runtime_env={"working_dir": str(PROGRAMS), "env_vars": options})
    trainer = TorchTrainer(
        train_worker,
        train_loop_config={"text": str(arguments.text), "steps": arguments.steps, "attach": arguments.attach},
        torch_config=TorchConfig(backend=None if arguments.attach else "isthmus"),
        scaling_config=ScalingConfig(
            num_workers=arguments.workers,
            use_gpu=arguments.gpus,
            resources_per_worker={"CPU": arguments.cpus_per_worker} | ({"GPU": 1} if arguments.gpus else {}),
        ),
    )
    trainer.fit()
