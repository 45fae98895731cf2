"""What a person runs: python -m common.programs.check, fetch, model, probe, weights. Training imports none of it."""

import common.machine.requirements  # noqa: F401 - ends here if a package is missing
