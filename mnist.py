"""data_parallel_train.py --dataset mnist, by the name that many a tutorial gives it: python mnist.py --epochs 3"""

import sys

from common.machine.begin import begin

begin(__name__)

from common.machine.entry import run_script
from data_parallel_train import main

if __name__ == "__main__":
    sys.argv[1:1] = ["--dataset", "mnist"]
    run_script(main)
