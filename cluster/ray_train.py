"""Train on the workers of a Ray cluster. The project is at the same path on all of its nodes.

    RANKS=4 python cluster/ray_train.py --dataset mnist --data-root /shared/data

RANKS: number of workers, one rank each (2). GPU=1: one GPU for each. SCRIPT: ddp_train.py or another script that trains
in ranks.
"""

import os
import subprocess
import sys
from pathlib import Path

from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer

PROJECT = Path(__file__).resolve().parent.parent
COMMAND = [sys.executable, os.environ.get("SCRIPT", "ddp_train.py"), *sys.argv[1:]]


def train() -> None:
    """Run the script as the rank that Ray made of this worker. Ray's own process group has MASTER_PORT."""
    port = str(int(os.environ["MASTER_PORT"]) + 1)
    subprocess.run(COMMAND, cwd=PROJECT, env={**os.environ, "MASTER_PORT": port}, check=True)


workers = ScalingConfig(num_workers=int(os.environ.get("RANKS", 2)), use_gpu=os.environ.get("GPU") == "1")
TorchTrainer(train, scaling_config=workers).fit()
