"""The measuring instrument: everything the training scripts share, and what shows results, which needs no torch."""

import sys

from common.machine.packages import SHOWING, require


def _end(kind, error, traceback, otherwise=sys.excepthook):
    """Ctrl-C while modules are imported, which takes seconds, is no error: the program ends by it without a word."""
    if not issubclass(kind, KeyboardInterrupt):
        otherwise(kind, error, traceback)


sys.excepthook = _end
require(SHOWING)
