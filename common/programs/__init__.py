"""What a person runs: python -m common.programs.check, fetch, model, probe, weights. Training imports none of it."""

import common.requirements  # noqa: F401 - ends here if a package is missing
