"""Go on with a comparison that was interrupted."""

from dataclasses import replace
from pathlib import Path

from common.errors import OUT_OF_MEMORY, USAGE, SuiteError
from comparison.record import Report
from comparison.results_file import as_read, read_results
from comparison.run.fitting import with_largest


def resumed(report: Report, path: Path) -> Report:
    """Return `report`, which has not run yet, with the finished runs of the interrupted comparison in `path`.

    Raises SuiteError (USAGE) if that was another comparison: other settings, rows, order or machine.
    """
    earlier, planned = read_results(path), as_read(report)
    changed = [
        f"{name} {before.get(name)} → {after.get(name)}"
        for before, after in ((earlier.settings, planned.settings), (earlier.environment, planned.environment))
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    ]
    before, now = (with_largest(some.plan, earlier.trials) for some in (earlier, planned))
    if not changed and (before, earlier.order[: len(planned.order)]) != (now, planned.order):
        changed = ["the rows or their order"]
    if changed:
        raise SuiteError(
            "cannot resume: that was another comparison",
            "; ".join(changed),
            "type the flags of then, or leave out --resume to start anew",
            USAGE,
        )
    done = tuple(outcome for outcome in earlier.outcomes if outcome.status in ("ok", OUT_OF_MEMORY))
    return replace(
        report,
        plan=with_largest(report.plan, earlier.trials),
        order=earlier.order,
        outcomes=done,
        probe=earlier.probe,
        equivalence=earlier.equivalence,
        in_turns=earlier.in_turns,
        looks=earlier.looks,
        trials=earlier.trials,
        timelines=earlier.timelines,
    )
