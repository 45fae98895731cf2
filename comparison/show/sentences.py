"""Wording of findings, numbers and rows for all outputs. The long sentences are in sentences.toml."""

from collections.abc import Callable, Iterable

from common.errors import OUT_OF_MEMORY
from comparison.judge.analysis import Analysis, Sweep
from comparison.judge.row_analysis import RowAnalysis
from comparison.judge.statistics import Ratio, decimals
from comparison.judge.summaries import A_THOUSAND, Finding
from comparison.methods import method_of
from comparison.outcomes import Trial
from comparison.rows import IN_LABEL, Row
from comparison.words import ENGLISH, Sentence, catalogue, count, join, named, say

SENTENCES = {key: texts[ENGLISH] for key, texts in catalogue("sentences").items()}
NOUNS = {  # for values that are counts
    "threads": ("thread",),
    "workers": ("loader worker",),
    "cores": ("core",),
    "micro_batches": ("micro-batch", "es"),
}


def sentence(key: str, **values: object) -> Sentence:
    """Return one of SENTENCES, with values."""
    return say(SENTENCES[key], **values)


def finding_sentence(finding: Finding) -> Sentence:
    """Return a finding as a sentence or a clause."""
    key = finding.wording or finding.kind
    in_digits = significant if key == "spread of slices" else in_seconds
    values = {name: _value(name, value, in_digits) for name, value in finding.values.items()}
    return say(SENTENCES[key], **values)


def _value(name: str, value: object, in_digits: Callable[[float], str]) -> object:
    if name in ("fastest", "slowest", "median") and isinstance(value, float):
        return in_digits(value)
    if isinstance(value, Finding):
        return finding_sentence(value)
    if isinstance(value, dict):
        return join(", ", [f"{part} {number:.1f}" for part, number in value.items()])
    if isinstance(value, tuple):
        return join("; " if name in ("settings", "ranks") else ", ", (_item(item, in_digits) for item in value))
    return count(value, *NOUNS[name]) if name in NOUNS and isinstance(value, (int, float)) else value


def _item(item: object, in_digits: Callable[[float], str]) -> str:
    if isinstance(item, Finding):
        return finding_sentence(item)
    if isinstance(item, str):
        return item
    return in_digits(item) if isinstance(item, float) else str(item)


def as_fast(ratio: Ratio, base: str = "") -> str:
    """Return e.g. "2.00 times as fast as “DDP” (95% CI 1.90 to 2.10)", without the parts that are unknown."""
    interval = say(" (95% CI {low:.2f} to {high:.2f})", low=ratio.low, high=ratio.high) if ratio.interval else ""
    template = "{x:.2f} times as fast as “{base}”{i}" if base else "{x:.2f} times as fast{i}"
    return say(template, x=ratio.value, i=interval, base=base)


def efficiency(share: Ratio) -> str:
    """Return an efficiency in percent, with its interval if known."""
    interval = f" [{100 * share.low:.0f}, {100 * share.high:.0f}]" if share.interval else ""
    return f"{share.value:.0%}{interval}"


def longer(ratio: Ratio) -> str:
    """Return a ratio of times (above 1 is slower) with its interval and conclusion."""
    return say("{ratio} ({words})", ratio=ratio, words=ratio.inverse.words)


def mebibytes(size: float) -> str:
    """Return bytes in MiB, with one decimal below 10 MiB."""
    return f"{size / 2**20:,.1f}" if size < 10 * 2**20 else f"{size / 2**20:,.0f}"


def milliseconds(value: float) -> str:
    """Return a time with one decimal, or with two below 1 ms."""
    return f"{value:.2f}" if 0 < value < 1 else f"{value:.1f}"


def signed(time: float) -> str:
    """Return a difference of milliseconds with its sign."""
    return f"{time:+.{decimals(time)}f}"


def significant(value: float, digits: int = 3) -> str:
    """Return a positive number with so many significant digits, or as an integer if that has more."""
    exponent = f"{value:.{digits - 1}e}".partition("e")[2]  # of the rounded number
    return f"{value:,.{max(0, digits - 1 - int(exponent))}f}"


def in_seconds(time: float, decimals: int = 2) -> str:
    """Return seconds with so many decimals, or with more where these are fewer than two significant digits."""
    exponent = f"{time:.1e}".partition("e")[2] or 0  # of the rounded time; "nan" has none
    return f"{time:.{max(decimals, 1 - int(exponent))}f}"


def quoted(labels: Iterable[str]) -> str:
    """Return e.g. “A”, “B” and “C”."""
    *before, last = [say("“{row}”", row=label) for label in labels]
    return join(" and ", [join(", ", before), last]) if before else last


def series_name(rows: Iterable[Row], swept: str = "") -> str:
    """Return a name for rows of the same method that may differ in the value of `swept`."""
    rows = tuple(rows)
    label, method = rows[0].configuration.label, rows[0].configuration.method
    name, known = named(label), IN_LABEL
    if any(row.configuration.label != label for row in rows):
        name, known = method_of(method).called or method, ()
    return say("{name}{values}", name=name, values=rows[0].values(swept, known) if swept else "")


def time_asked(analysis: Analysis, entry: RowAnalysis) -> str:
    """Return a row's time to the target accuracy, if there is one, and per epoch; for scripts, per 1,000 samples.

    Images per second are included where the epochs of the rows differ in size.
    """
    numbers, parts = entry.summary, []
    if entry.row.configuration.is_script:
        return say("{s} s per 1,000 samples", s=significant(seconds_of_thousand(entry)))
    if analysis.report.settings.get("target_accuracy") is not None:
        parts.append(_time_to_target(analysis, entry))
    if not analysis.same_images:
        parts.append(say("{n} images/s", n=significant(numbers.images_per_second)))
    return join(", ", [*parts, say("{s} s per epoch", s=in_seconds(numbers.epoch_seconds))])


def seconds_of_thousand(entry: RowAnalysis) -> float:
    """Return the seconds per A_THOUSAND samples of a row that has a result."""
    return A_THOUSAND / entry.summary.images_per_second


def _time_to_target(analysis, entry):
    target = 100 * analysis.report.settings["target_accuracy"]
    return say("{s} s of training to {n:g}%", s=in_seconds(entry.summary.training_seconds), n=target)


def instead_of(analysis: Analysis, entry: RowAnalysis, baseline: RowAnalysis) -> str:
    """Return the times of a row and its baseline: "1.00 s instead of 2.00 s per epoch"."""
    own, other = entry.summary, baseline.summary
    if entry.row.configuration.is_script:
        s, t = (significant(seconds_of_thousand(some)) for some in (entry, baseline))
        return say("{s} s instead of {t} s per 1,000 samples", s=s, t=t)
    if analysis.report.settings.get("target_accuracy") is not None:
        times = {"time": time_asked(analysis, entry), "other": time_asked(analysis, baseline)}
        return say("{time}, instead of {other}", **times)
    if not analysis.same_images:
        s, t = significant(own.images_per_second), significant(other.images_per_second)
        return say("{s} instead of {t} images/s", s=s, t=t)
    return say("{s} s instead of {t} s per epoch", s=in_seconds(own.epoch_seconds), t=in_seconds(other.epoch_seconds))


def fastest_value(analysis: Analysis, sweep: Sweep) -> str:
    """Return the fastest value of a sweep with its speed, or the values that are statistically tied."""
    if not sweep.fastest:
        return say("disturbed, so its times prove nothing")
    if any(ratio.low is None for ratio in sweep.ratios):
        return say("too few runs to tell the fastest")
    *values, last = [str(sweep.value(entry)) for entry in sweep.rows if entry in sweep.fastest]
    if values:
        return say("fastest at {values} or {value} (statistically tied)", values=join(", ", values), value=last)
    best = sweep.fastest[0]
    how = say("{n} images/s", n=significant(best.summary.images_per_second))
    if analysis.report.settings.get("target_accuracy") is not None:
        how = _time_to_target(analysis, best)
    return say("fastest at {value}, {how}", value=last, how=how)


def several_baselines(analysis: Analysis) -> bool:
    """Whether rows have different baselines, so that sentences must name them."""
    return len({entry.standing.baseline.label for entry in analysis.rows if entry.standing.baseline}) > 1


def tell_disturbed(rows: Iterable[Row]) -> str:
    """Return which rows other programs disturbed and how much, or "" if none."""
    noisy = [row for row in rows if row.disturbed]
    if not noisy:
        return ""
    most = max((row.foreign for row in noisy), key=lambda foreign: foreign.share)
    return say(
        "other programs {what} during runs of {rows}, so these times prove nothing; close them and run again",
        what=most.words,
        rows=quoted(row.label for row in noisy),
    )


def tell_trial(trial: Trial) -> str:
    """Return the result of a trial of a batch size."""
    if trial.fits:
        return say("fits, with {n} MiB at its peak", n=mebibytes(trial.peak_bytes))
    return trial.status if trial.status == OUT_OF_MEMORY else f"{trial.status}, {trial.reason}"
