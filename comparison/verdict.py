"""The comparison in words: one paragraph per row, every sentence with the number behind it, and a recommendation."""

from comparison.causes import causes, equal_partner
from comparison.fairness import Standing, standing
from comparison.methods import all_cores_methods, method_of
from comparison.plan import SWEEPS
from comparison.record import Report, Row
from comparison.statistics import NO_DIFFERENCE, phase_milliseconds, ratio_of, summarize


def verdict(report: Report) -> list[str]:
    """Return one paragraph per row, one per sweep and method, and last what to use on this machine."""
    rows = [f"{row.label}: {_paragraph(report, row)}" for row in report.rows]
    return [*rows, *_sweeps(report), *recommendations(report)]


def _paragraph(report, row):
    if row.configuration.skip:
        return f"skipped: {row.configuration.skip}."
    broken = [f"{len(row.troubles)} of {len(row.outcomes)} runs {row.troubles[0].status}: "
              f"{row.troubles[0].reason}."] if row.troubles else []
    if not row.results:
        return " ".join(broken or ["not run."])
    stands = standing(report, row)
    if noisy := _disturbed([row] if stands.baseline in (None, row) else [row, stands.baseline]):
        return " ".join([*broken, f"disturbed, nothing can be claimed from its times: {noisy}."])
    found = causes(report, row)
    explained = [cause.sentence for cause in found]
    if not found and stands.baseline is not row and stands.speed_up:
        explained = [_no_cause(row)]
    return " ".join([*broken, _how_fast(report, row, stands), *explained, *_ladder(report, row, found)])


def _how_fast(report, row, stands: Standing):
    numbers = summarize(row)
    own = (f"{numbers.epoch_seconds:.2f} s per epoch ({numbers.fastest_epoch:.2f} to {numbers.slowest_epoch:.2f}, "
           f"{numbers.runs} run(s))")
    if stands.baseline is row:
        return f"the baseline, {own}."
    if row.simulated:
        return f"simulated on one device, which says nothing about the method's speed; {own}."
    if stands.speed_up is None:
        return f"{own}; no speed-up, {stands.reason}."
    speed_up, units = stands.speed_up, f"{len(row.results[0].devices)} devices"
    if row.all_cores:
        units = f"{row.results[0].threads_per_process} cores"
    said = {"faster": f"faster than “{stands.baseline.label}”, {speed_up} times as fast",
            "slower": f"slower than “{stands.baseline.label}”, {speed_up} times as fast",
            NO_DIFFERENCE: f"neither faster nor slower than “{stands.baseline.label}”, {speed_up} times as fast"}
    words = said.get(speed_up.words, f"{speed_up} times as fast as “{stands.baseline.label}” in the only run, which "
                                     "proves nothing")
    efficiency = f"{stands.efficiency(row):.0%}"
    share = f", {efficiency} of what {units} could give at best" if units != "1 devices" else ""
    return f"{words}{share}; {own} instead of {summarize(stands.baseline).epoch_seconds:.2f} s."


def _no_cause(row):
    phases = phase_milliseconds(row)
    parts = ", ".join(f"{name} {value:.1f}" for name, value in phases.items())
    return f"None of the causes looked for stands out; a step's {sum(phases.values()):.1f} ms are {parts}."


def _ladder(report, row, found):
    """What a method's parts tell apart: see comparison.methods.Parts."""
    method = method_of(row.configuration.method)
    if not method.parts:
        return []
    single, one, silent = (equal_partner(report, row, part) for part in
                           (method.parts.without, method.parts.one_rank, method.parts.no_exchange))
    ranks, said = len(row.results[0].devices), []
    if single and one:
        said.append(f"{method.called}'s wrapper: an epoch with one rank, divided by one without {method.called}, is "
                    f"{longer(one, single)}.")
    if one and silent:
        cost = ratio_of(silent, one)
        said.append(f"Contention: an epoch with {ranks} ranks that exchange nothing, divided by one with one rank, is "
                    f"{cost}, where {1 / ranks:.2f} would be ideal; ranks share cores, memory and loader, and have "
                    "smaller batches.")
    if silent and not any(cause.kind == "exposed communication" for cause in found):
        said.append(f"Communication: an epoch with the exchange of gradients, divided by one without, is "
                    f"{longer(row, silent)}.")
    return said


def sweep_groups(report: Report, name: str) -> list[list[Row]]:
    """Return the rows that differ in one swept setting alone, as lists of at least two, in the order of its values."""
    groups: dict[str, list[Row]] = {}
    for row in report.rows:
        if name in row.configuration.values and row.results:
            groups.setdefault(row.series(name), []).append(row)
    return [rows for rows in groups.values() if len(rows) > 1]


def _sweeps(report):
    said = []
    for name in report.swept:
        for rows in sweep_groups(report, name) if name != "model" else ():
            first, best = rows[0], min(rows, key=lambda row: summarize(row).epoch_seconds)
            compared = ", ".join(f"{row.configuration.values[name]}: {longer(row, first)}" for row in rows[1:])
            simulated = " (simulated)" if any(row.simulated for row in rows) else ""
            said.append(f"Sweep of {SWEEPS[name].lower()}, {first.configuration.method}{first.values(without=name)}"
                        f"{simulated}: lowest median at {best.configuration.values[name]}, "
                        f"{summarize(best).epoch_seconds:.2f} s per epoch. Times as long as at "
                        f"{first.configuration.values[name]}: {compared}.")
    return said


def longer(row: Row, other: Row) -> str:
    """Return how many times as long as `other` a row takes, with its interval and what that means."""
    found = ratio_of(row, other)
    words = {"faster": "slower", "slower": "faster"}.get(found.words, found.words)  # it is a ratio of times
    return f"{found} ({words})"


def recommendations(report: Report) -> list[str]:
    """Return which row to use here, for each model and batch: the fastest that is proved to be, or one device."""
    judged = [(row, stands) for row in report.rows if row.results and not row.times_only
              for stands in [standing(report, row)] if stands.speed_up and stands.baseline is not row
              and not stands.unequal]
    if not judged:
        return ["Recommendation: none, as no other method was measured against the baseline."]
    groups: dict[str, list] = {}
    for row, stands in judged:
        trained = [f"{SWEEPS[name].lower()} {value}" for name, value in row.configuration.values.items()
                   if name in ("model", "batch_size")]
        groups.setdefault(", ".join(trained), []).append((row, stands))
    return [(f"For {trained}: " if trained else "") + _recommend(report, pairs) for trained, pairs in groups.items()]


def _disturbed(rows):
    """Which of the rows other programs disturbed, and by how much; nothing if none."""
    noisy = [row for row in rows if row.disturbed]
    if not noisy:
        return ""
    most = max(row.foreign_cores for row in noisy)
    return (f"other programs kept up to {most:.1f} of {noisy[0].cores} cores busy during runs of "
            f"{', '.join(f'“{row.label}”' for row in noisy)}; close them and run again")


def _recommend(report, judged):
    """judged: (row, standing) pairs that trained the same."""
    rows = list({row.label: row for pair in judged for row in (pair[0], pair[1].baseline)}.values())
    if noisy := _disturbed(rows):
        return f"Recommendation: none. The comparison was disturbed: {noisy}."
    whole = min((row for row in rows if row.all_cores), key=lambda row: summarize(row).epoch_seconds, default=None)
    cores = report.environment["cores"]
    if whole is None and report.first["device"] == "cpu" and report.device_threads < cores:
        return (f"Recommendation: none. One process with all {cores} cores may be faster than all of these and was not "
                f"measured: add {' or '.join(all_cores_methods())} to --methods, or see above why it has no time.")
    proved = [pair for pair in judged if pair[1].speed_up.low is not None]
    if not proved:
        row, stands = max(judged, key=lambda pair: pair[1].speed_up.value)
        return (f"Recommendation: none, as single runs prove nothing; the fastest was “{row.label}”, {stands.speed_up} "
                f"times as fast as “{stands.baseline.label}”. Give --repeats 3 or more.")
    winners = [pair for pair in proved if pair[1].speed_up.words == "faster"]
    candidates = [*(row for row, _ in winners), *(stands.baseline for _, stands in proved)]
    best = min(candidates, key=lambda row: summarize(row).epoch_seconds)
    won = next((stands for row, stands in winners if row is best), None)
    if won is None:
        closest, stands = max(proved, key=lambda pair: pair[1].speed_up.value)
        return (f"Recommendation: stay with “{best.label}”, {summarize(best).epoch_seconds:.2f} s per epoch. The best "
                f"of the others against an equal baseline, “{closest.label}”, is {stands.speed_up} times as fast as "
                f"“{stands.baseline.label}”: {stands.speed_up.words}.")
    rivals = {row.label: row for row in (*(row for row, _ in winners), *([whole] if whole else [])) if row is not best}
    equals = [f"“{label}”" for label, row in rivals.items() if ratio_of(row, best).words == NO_DIFFERENCE]
    said = f"Recommendation: “{best.label}”, {won.speed_up} times as fast as “{won.baseline.label}”"
    if whole and whole is not best:
        said += f" and {ratio_of(whole, best)} times as fast as “{whole.label}”"
    return f"{said} on this machine." + (f" Not told apart from it: {', '.join(equals)}." if equals else "")
