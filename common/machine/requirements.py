"""Imported for its effect, before any of the packages, by all that trains: imports torch, and ends the program if that
cannot be done, or if a package is missing."""

import atexit
import gc
import os

from common.machine.entry import skip_teardown
from common.machine.lifetime import end_with_parent, has_launcher
from common.machine.packages import PACKAGES, load, require

if has_launcher():  # which may end while this rank imports torch
    end_with_parent()
atexit.register(skip_teardown)
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # or c10d logs each attempt to connect; its errors are reported
require(PACKAGES)
gc.disable()  # it would look for garbage among all that an import makes, for a sixth of the time, and find none
load("torch")
gc.freeze()  # nor will it look there later
gc.enable()
