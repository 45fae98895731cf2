"""The programs in benchmarks/ import one another without a package; so do their tests."""

import sys

from tests.fixtures import PROJECT

sys.path.insert(0, str(PROJECT / "benchmarks"))
