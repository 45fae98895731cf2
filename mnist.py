"""data_parallel_train.py --dataset mnist, by the name that many a tutorial gives it: python mnist.py --epochs 3"""

import runpy
import sys

if __name__ == "__main__":
    sys.argv[1:1] = ["--dataset", "mnist"]
    runpy.run_module("data_parallel_train", run_name="__main__", alter_sys=False)
