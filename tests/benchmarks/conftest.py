"""Makes the scripts in benchmarks/ importable, as they are not in a package."""

import sys

from tests.fixtures import PROJECT

sys.path.insert(0, str(PROJECT / "benchmarks"))
