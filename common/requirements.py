"""Imported for its effect, before any of the packages, by all that trains: ends the program if one is missing, or torch
cannot be imported."""

import os

from common.packages import PACKAGES, load, require

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # or c10d logs each attempt to connect; its errors are reported
require(PACKAGES)
load("torch")
