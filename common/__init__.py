"""The measuring instrument: everything the training scripts share."""

import common.requirements  # noqa: F401 - ends here if a package is missing
