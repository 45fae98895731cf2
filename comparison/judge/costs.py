"""What a method's parts cost, told by the rows that leave one of them out: its wrapper, contention, communication."""

from dataclasses import dataclass
from operator import attrgetter

from comparison.judge.measures import ratio_of
from comparison.judge.statistics import Ratio
from comparison.methods import method_of
from comparison.record import Report, Row


@dataclass(frozen=True)
class Costs:
    """What a method's parts (see comparison.methods.Parts) tell apart, as ratios of times; None if not measured.

    wrapper: one rank ÷ without the method. contention: all ranks without exchange ÷ one rank. exchange: with it ÷
    without it.
    """

    wrapper: Ratio | None = None
    contention: Ratio | None = None
    exchange: Ratio | None = None


def find_costs(report: Report, row: Row) -> Costs:
    """Return the costs of a row whose method has parts, from the rows of those that are equal to it otherwise."""
    parts = method_of(row.configuration.method).parts
    if not parts or not row.results:
        return Costs()
    without, one_rank, no_exchange = (
        _equal_partner(report, row, method) for method in (parts.without, parts.one_rank, parts.no_exchange)
    )
    return Costs(
        without and one_rank and ratio_of(report, one_rank, without),
        one_rank and no_exchange and ratio_of(report, no_exchange, one_rank),
        no_exchange and ratio_of(report, row, no_exchange),
    )


def _equal_partner(report, row, method):
    """The row of another method with the same swept values and equal settings, if it has results."""
    batch = "per_device_batch_size" if report.settings["scaling"] == "weak" else "batch_size"
    other, settings = report.partner(row, method), attrgetter("model", batch, "num_workers", "threads")
    if other and other.results and settings(other.configuration.planned) == settings(row.configuration.planned):
        return other
    return None
