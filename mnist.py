"""Run data_parallel_train.py --dataset mnist, under the name that tutorials use: python mnist.py --epochs 3"""

import runpy
import sys

if __name__ == "__main__":
    sys.argv[1:1] = ["--dataset", "mnist"]
    runpy.run_module("data_parallel_train", run_name="__main__", alter_sys=False)
