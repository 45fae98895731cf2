"""The numbers that a reader sees, compared with independent calculations from the raw results of unlike()."""

import html
import random
import re
from dataclasses import replace
from itertools import groupby
from math import log
from statistics import fmean, geometric_mean, median, stdev

import pytest

from common.files import plots
from common.files.describe import describe_end, describe_start
from common.files.results import PHASES, PhaseTimes
from common.words import printable
from comparison.judge.analysis import analyse
from comparison.outcomes import CardUse
from comparison.plan.counterparts import BEFORE, counterpart
from comparison.show import figures
from comparison.show import plots as row_plots
from comparison.show.report import write_html
from comparison.show.sections import TABLE, sections
from comparison.show.tables import answer_rows
from comparison.show.terminal import terminal_text
from comparison.show.verdict import sweep_sentences
from tests.pages import read_page
from tests.reports import configuration, each_epoch, make_result, markdown_of, report_of, runs, script, unlike

ANALYSIS = analyse(unlike())
REPORT = ANALYSIS.report
ENTRIES = {entry.name: entry for entry in ANALYSIS.rows}
RUNS = {  # successful runs by row
    row.name: [outcome for outcome in REPORT.outcomes if outcome.configuration == row.name and outcome.result]
    for row in REPORT.plan
}
RESULTS = {name: [outcome.result for outcome in runs] for name, runs in RUNS.items() if runs}
MEASURED = [name for name in RESULTS if name != "dp"]  # dp is simulated
DEVICES = {"single": 1, "single-all-cores": 2, "ddp": 2, "fsdp": 2}  # in units of the baseline's threads
SECONDS = {  # of an epoch after the warm-up
    name: geometric_mean(fmean(epoch.train_seconds for epoch in result.epochs[1:]) for result in results)
    for name, results in RESULTS.items()
}
TIMED = {name: [epoch for result in results for epoch in result.epochs[1:]] for name, results in RESULTS.items()}
WHOLE = {name: geometric_mean(outcome.wall_seconds for outcome in runs) for name, runs in RUNS.items() if runs}
PEAK, TOGETHER = (
    {name: median(combine(result.peak_memory_bytes) for result in results) / 2**20 for name, results in RESULTS.items()}
    for combine in (max, sum)
)
LAST = {name: [100 * result.epochs[-1].test_accuracy for result in results] for name, results in RESULTS.items()}
SPEED_UP = {name: SECONDS["single"] / SECONDS[name] for name in MEASURED}
BEST = min(("single", "ddp", "single-all-cores"), key=WHOLE.get)


def mean_epoch(result):
    return fmean(epoch.train_seconds for epoch in result.epochs[1:])


def phase(name, part):
    """Milliseconds of a phase per step, averaged over the timed epochs of all runs."""
    return fmean(getattr(epoch.phases, part) for epoch in TIMED[name])


def ideal(name, part):
    """[the baseline's phase under ideal scaling], or [] if the baseline does not have the phase."""
    return [phase("single", part) / DEVICES[name]] if name in MEASURED[1:] and phase("single", part) else []


def shows(text, *values):
    """Assert that a text contains exactly these numbers, correct to the last digit."""
    found = re.findall(r"(?<![\w.])[-+]?\d[\d,]*\.?\d*", text)
    half = [0.501 * 10 ** -len(number.partition(".")[2]) for number in found]
    assert len(found) == len(values), (text, values)
    for number, value, some in zip(found, values, half, strict=True):
        assert float(number.replace(",", "")) == pytest.approx(value, abs=some, rel=0), text
    return True


def row_shows(row, cells):
    """Assert that a row has these numbers below the headings."""
    for heading, numbers in cells.items():
        shows(row[heading], *(numbers if isinstance(numbers, tuple) else (numbers,)))


def tables_of(markdown):
    """The tables below each heading, as lists of lists of cells."""
    found = {}
    for part in markdown.split("\n## ")[1:]:
        heading, *lines = part.split("\n")
        blocks = [[*block] for is_table, block in groupby(lines, key=lambda line: line.startswith("|")) if is_table]
        found[heading] = [[cells_of(line) for line in (block[0], *block[2:])] for block in blocks]
    return found


def cells_of(line):
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


@pytest.fixture(scope="module")
def markdown(tmp_path_factory):
    return markdown_of(ANALYSIS, tmp_path_factory.mktemp("seen"))


@pytest.fixture(scope="module")
def tables(markdown):
    """The tables below each heading, as lists of dictionaries from column to cell."""
    return {
        heading: [[dict(zip(some[0], row, strict=True)) for row in some[1:]] for some in every]
        for heading, every in tables_of(markdown).items()
    }


def by_name(rows):
    return {row["Method"].lower(): row for row in rows}


# ---- tables


def relative(name):
    """The wall time of a row relative to the best one, with the interval of the analysis."""
    ratio = ANALYSIS.ratio_to_best(ENTRIES[name])
    return WHOLE[name] / WHOLE[BEST], *(() if name == BEST else (ratio.low, ratio.high))


def speed_up(name):
    ratio = ENTRIES[name].standing.speed_up
    return SPEED_UP[name], *(() if name == "single" else (ratio.low, ratio.high))


def test_the_main_table(tables):
    rows = by_name(tables["Result"][0])
    assert [*rows] == [row.name for row in REPORT.plan]
    for name, results in RESULTS.items():
        times = [epoch.train_seconds for epoch in TIMED[name]]
        cells = {
            "Devices": len(results[0].devices),
            "Accuracy (%)": (fmean(LAST[name]), stdev(LAST[name])),
            "Time per epoch (s)": SECONDS[name],
            "min–max": (min(times), max(times)),
            "Runs": 3,
            "Images/s": 1000 / SECONDS[name],
            "Total time (s)": WHOLE[name],
            "Peak memory (MiB)": PEAK[name],
        }
        if name in MEASURED:
            efficiency = tuple(100 * part / DEVICES[name] for part in speed_up(name))
            cells |= {"Speed-up [95%]": speed_up(name), "Efficiency [95%]": efficiency}
            cells |= {"Relative time [95%]": relative(name)}
        row_shows(rows[name], cells)
    assert {row["Speed-up [95%]"] for name, row in rows.items() if name not in MEASURED} == {"–"}


def check_answers(header, *rows):
    """Assert that a table of answers has the rows in the order of time, with their numbers."""
    rows, by_time = [dict(zip(header, row, strict=False)) for row in rows], sorted(MEASURED, key=WHOLE.get)
    assert [row["Method"].lower() for row in rows] == [*by_time, "dp", "mp"]
    for row, own in zip(rows, by_time, strict=False):
        row_shows(row, {"Whole run (s)": WHOLE[own], "Relative [95% CI]": relative(own), "Memory (MiB)": TOGETHER[own]})


def test_the_screen():
    text = terminal_text(ANALYSIS, width=100)
    table = next(part for part in text.split("\n\n") if part.startswith("Method "))
    check_answers(*(re.split(r"\s{2,}", line) for line in table.splitlines()))
    advice = re.search("Recommendation: use “(.*?)”, (.*?) for a whole run of", " ".join(text.split()))
    assert advice[1] == BEST.upper() and "as fast as “SINGLE” (" in advice[2]
    _, low, high = relative("single")
    shows(advice[2].replace("95%", ""), WHOLE["single"] / WHOLE[BEST], low, high, WHOLE[BEST], WHOLE["single"])
    shows(re.search("Peak memory, all devices: (.*?) MiB", text)[1], TOGETHER[BEST])


def test_rows_are_compared_by_images_per_second_if_their_epochs_differ_in_size(tmp_path):
    rows = [
        (configuration(method), [each_epoch(one, samples=samples) for one in runs(method, 3 * (seconds,))])
        for method, samples, seconds in (("single", 1000, 2.0), ("ddp", 900, 1.5))
    ]
    text = markdown_of(analyse(report_of(*rows, allow_unequal=True)), tmp_path)
    assert "600 instead of 500 images/s" in text and "SINGLE: the baseline, 500 images/s, 2.00 s per epoch" in text


# ---- one run


def test_what_a_training_script_prints_and_draws_at_its_end(monkeypatch):
    result, shown = RESULTS["ddp"][0], []
    training, accuracy, classes, memory, *_ = describe_end(result).split("\n")
    shows(training, sum(epoch.train_seconds for epoch in result.epochs), result.total_seconds)
    shows(accuracy, 100 * result.epochs[-1].test_accuracy)
    shows(classes, *(100 * share for share in result.class_accuracy.values()))
    known = (size / 2**20 for size in result.memory_parts.values())
    shows(memory, max(result.peak_memory_bytes) / 2**20, *known)
    assert "0 loader workers per process" in describe_start(result)
    monkeypatch.setattr(plots, "save_figure", lambda figure, path: shown.append(figure))
    plots.draw_curves(result, "")
    losses, accuracies = shown[0].axes
    lines = {line.get_label(): [*line.get_ydata()] for line in losses.get_lines()}
    assert lines == {
        "training": [one.train_loss for one in result.epochs],
        "test": [one.test_loss for one in result.epochs],
    }
    assert [*accuracies.get_lines()[0].get_ydata()] == [100 * one.test_accuracy for one in result.epochs]
    title, trained = shown[0].get_suptitle().split("\n")
    assert trained == "lenet on synthetic-mnist, ddp, 2 × cpu"
    shows(title, 3, 100 * result.epochs[-1].test_accuracy)
    plots.draw_curves(RESULTS["dp"][0], "")
    assert shown[1].get_suptitle().endswith(", dp, 1 × cpu\nSIMULATED: 2 replicas")
    plots.draw_curves(replace(result, epochs=result.epochs[:1]), "")
    shown[2].canvas.draw()
    assert all(tick == round(tick) for axis in shown[2].axes for tick in axis.get_xticks())


# ---- files


def test_markup_in_names_and_reasons_is_escaped_in_every_part_of_a_report(tmp_path):
    """In lists, paragraphs, tables, commands, and the title."""
    hostile = "<img src=x> [a](http://b)\x1b[2J"
    outcomes = tuple(one if one.result else replace(one, reason=hostile, command=hostile) for one in REPORT.outcomes)
    plan = tuple(replace(row, label=f"{row.label} {hostile}") for row in REPORT.plan)
    report = replace(REPORT, outcomes=outcomes, plan=plan, settings={**REPORT.settings, "dataset": hostile})
    text, _, commands = markdown_of(analyse(report), tmp_path).partition("\n## Commands")
    assert text.count("&lt;img") > 30 and "<img" not in text and "](http" not in text
    assert printable(hostile) in commands and "\x1b" not in text + commands
    write_html(analyse(report), tmp_path / "report.html", [])
    text = (tmp_path / "report.html").read_text()
    assert text.count("&lt;img") > 30 and "<img" not in text


def tables_in(page):
    """By a section's class or heading, the rows of its tables, as (text, attributes of the shapes) per cell."""

    def content(cell):
        return "".join(cell.itertext()), [part.attrib for part in cell.iter() if part.tag in ("circle", "rect")]

    return {
        part.get("class") or "".join(part.find("summary").itertext()).strip(): [
            [[content(cell) for cell in row] for row in table.iter("tr")] for table in part.iter("table")
        ]
        for tag in ("section", "details")
        for part in page.iter(tag)
    }


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    file = tmp_path_factory.mktemp("page") / "report.html"
    write_html(ANALYSIS, file, [])
    return tables_in(read_page(file))


def test_the_page_has_the_tables_of_the_report(page, markdown):
    for heading, tables in ((heading, some) for heading, some in tables_of(markdown).items() if some):
        seen = [[[text.strip() for text, _ in row] for row in rows] for rows in page[html.unescape(heading)]]
        assert seen == [[[cell.replace("\\|", "|") for cell in row] for row in rows] for rows in tables], heading


def percents(drawn):
    return [float(one.get("cx", one.get("x")).rstrip("%")) for one in drawn]


def test_the_answers_and_times_of_the_page(page):
    (rows,) = page["answers"]
    check_answers(*([text.replace("\N{NO-BREAK SPACE}", " ") for text, _ in row] for row in rows))
    ((*rows, (_, (ends, _), _)),) = page["times"]
    by_time, most = sorted(MEASURED, key=WHOLE.get), max(one.train_seconds for name in MEASURED for one in TIMED[name])
    assert [name.lower() for (name, _), *_ in rows] == by_time and shows(ends[1:], most)
    for name, (_, (_, drawn), (mean, _)) in zip(by_time, rows, strict=True):
        shows(mean, SECONDS[name])
        timed = [(epoch, run.block) for run in RUNS[name] for epoch in run.result.epochs[1:]]
        every = sorted((epoch.train_seconds, block, epoch.epoch) for epoch, block in timed)
        assert [dot["data-at"] for dot in drawn[:-1]] == [f"{block} {epoch} {time:.3f}" for time, block, epoch in every]
        times = [*(time for time, *_ in every), SECONDS[name]]
        assert percents(drawn) == pytest.approx([100 * time / most for time in times], abs=0.01)


# ---- figures


@pytest.fixture(scope="module")
def drawn():
    return {name: draw(ANALYSIS) for name, draw in figures.FIGURES.items()}


def figure_of(name, *rows, **settings):
    """A figure of a comparison with these rows."""
    return figures.FIGURES[name](analyse(report_of(*rows, **settings)))


def labels(axis):
    return [text.get_text().lower() for text in axis.get_yticklabels()]


def test_curves_show_the_mean_accuracy_over_epochs_and_seconds(drawn):
    over_epochs, over_time = drawn["curves.png"].axes
    for axis in (over_epochs, over_time):
        for line in axis.get_lines():
            name = line.get_label().lower()
            epochs = [*zip(*(result.epochs for result in RESULTS[name]), strict=True)]
            means = [100 * fmean(one.test_accuracy for one in same) for same in epochs]
            assert line.get_ydata() == pytest.approx(means)
            seconds = [fmean(one.train_seconds for one in same) for same in epochs]
            summed = [sum(seconds[: number + 1]) for number in range(3)]
            assert line.get_xdata() == pytest.approx(summed if axis is over_time else [1, 2, 3])
    assert [line.get_label().lower() for line in over_time.get_lines()] == MEASURED


def test_speed_ups_are_drawn_with_their_intervals_the_fastest_first(drawn):
    (axis,) = drawn["speed-up.png"].axes
    by_speed = sorted(MEASURED, key=SECONDS.get)
    assert labels(axis) == by_speed and axis.yaxis_inverted() and not axis.patches
    for place, (name, dot, text) in enumerate(zip(by_speed, axis.containers, axis.texts, strict=False)):
        line, _, bars = dot
        assert ([*line.get_xdata()], [*line.get_ydata()]) == ([pytest.approx(SPEED_UP[name])], [place])
        for bar in bars:
            assert [x for x, _ in bar.get_segments()[0]] == pytest.approx(speed_up(name)[1:])
        assert shows(text.get_text(), *speed_up(name)) and text.xy == (pytest.approx(speed_up(name)[-1]), place)
    best, title = by_speed[0], drawn["speed-up.png"].get_suptitle().partition("\n")[0]
    assert re.fullmatch(f"“{best.upper()}” is .* as fast as “SINGLE”", title) and shows(title, SPEED_UP[best])


def bars(axis):
    return [(bar.get_y() + bar.get_height() / 2, bar.get_x(), bar.get_width()) for bar in axis.patches]


def test_phases_and_memory_are_drawn_as_bars(drawn):
    for axis in drawn["phases.png"].axes:
        part, lines = axis.get_title(), axis.get_lines()
        ticks = {at: tick for line in lines for at, tick in zip(line.get_ydata(), line.get_xdata(), strict=True)}
        times = [phase(name, part) for name in RESULTS]
        assert [length for *_, length in bars(axis)] == pytest.approx(times) and max(times) < axis.get_xlim()[1]
        assert all(shows(text.get_text(), value) for text, value in zip(axis.texts, times, strict=True))
        assert ticks == pytest.approx({at: tick for at, name in enumerate(RESULTS) for tick in ideal(name, part)})
    assert "tick: ideal scaling" in drawn["phases.png"].get_supxlabel()
    (axis,) = drawn["memory.png"].axes
    assert labels(axis) == [*RESULTS] and axis.yaxis_inverted()
    assert bars(axis) == [(pytest.approx(place), 0, pytest.approx(size)) for place, size in enumerate(PEAK.values())]
    for place, (text, size) in enumerate(zip(axis.texts, PEAK.values(), strict=True)):
        assert shows(text.get_text(), size) and text.xy == (pytest.approx(size), place)
    most = max(MEASURED[1:], key=lambda name: abs(log(PEAK[name] / PEAK["single"])))
    title = drawn["memory.png"].get_suptitle()
    assert title.startswith(f"“{most.upper()}” needs {PEAK[most] / PEAK['single']:.2f} times")


def test_titles_name_the_row_and_the_phase_that_lose_the_most_time(drawn):
    pairs = [(name, part) for name in MEASURED[1:] for part in PHASES if part != "rest"]
    name, part = most = max(pairs, key=lambda pair: phase(*pair) - sum(ideal(*pair)))
    title = drawn["phases.png"].get_suptitle().partition("\n")[0]
    assert f"{part} of “{name.upper()}”" in title and shows(title.partition("”")[2], phase(*most), *ideal(*most))
    waits = {}
    for row, spans in REPORT.timelines.items():
        lengths = [(span.end - span.start, span.name) for span in spans]
        waits[row] = sum(long for long, name in lengths if name == "exchange") / sum(long for long, _ in lengths)
    longest, title = max(waits, key=waits.get), drawn["timeline.png"].get_suptitle().partition("\n")[0]
    assert f"“{longest.upper()}”" in title and shows(title.partition("”")[2], 100 * waits[longest])


def test_timelines_are_drawn_as_bars_from_start_to_end(drawn):
    assert len({axis.get_xlim() for axis in drawn["timeline.png"].axes}) == 1
    for axis, (name, spans) in zip(drawn["timeline.png"].axes, REPORT.timelines.items(), strict=True):
        assert axis.get_title().lower() == name
        seen = sorted((x, length) for _, x, length in bars(axis))
        assert seen == [pytest.approx(one) for one in sorted((span.start, span.end - span.start) for span in spans)]
        assert len({y for y, *_ in bars(axis)}) == len({span.rank for span in spans})


# ---- sweeps


def swept():
    """Two methods with several numbers of workers, where every epoch takes a different time."""
    rows, rng = [], random.Random(6)
    for method in ("single", "ddp"):
        for place, value in enumerate((0, 2, 4)):
            seconds = (3.0 - place + (place == 2) * 1.7) * (1.0 if method == "single" else 0.8)
            times = [[seconds * rng.uniform(0.97, 1.03) for _ in range(3)] for _ in range(3)]
            phases = PhaseTimes(*(seconds * 10 * rng.uniform(0.5, 1.0) for _ in range(4)), update=seconds * 5)
            made = [make_result(method, own, phases=phases, workers_per_process=value) for own in times]
            rows.append((configuration(method, values={"num_workers": value}), made))
    return report_of(*rows)


def test_the_figure_of_a_sweep():
    analysis = analyse(swept())
    axes = figures.FIGURES["sweep-num-workers.png"](analysis).axes
    results = {entry.name: entry.row.results for entry in analysis.rows}
    for axis, method in zip(axes, ("single", "ddp"), strict=True):
        own = [name for name in results if name.startswith(method)]
        epochs = [[epoch for result in results[name] for epoch in result.epochs[1:]] for name in own]
        means = [geometric_mean(map(mean_epoch, results[name])) for name in own]
        data, steps = [one[0].phases.data for one in epochs], [sum(one[0].phases.known.values()) for one in epochs]
        waiting = [1000 * mean * part / step for mean, part, step in zip(means, data, steps, strict=True)]
        assert [bar.get_height() for bar in axis.patches[:3]] == pytest.approx(waiting)
        rest = axis.patches[3:]
        assert [bar.get_y() for bar in rest] == pytest.approx(waiting)
        assert [bar.get_y() + bar.get_height() for bar in rest] == pytest.approx([1000 * mean for mean in means])
        whiskers = [end for segment in axis.collections[0].get_segments() for end in segment[:, 1]]
        ends = [1000 * end([one.train_seconds for one in some]) for some in epochs for end in (min, max)]
        assert whiskers == pytest.approx(ends)
        best, words = means.index(min(means)), axis.get_title().partition("\n")[2]
        assert words.startswith("fastest at ") and shows(words, int(own[best][-1]), 1000 / means[best])


def test_the_figure_of_scaling():
    rows, times = [(configuration(), runs(seconds=(2.0, 2.04, 1.97)))], {1: 1.9, 2: 1.1, 4: 0.7}
    for count, seconds in reversed(times.items()):
        made = runs("ddp", [seconds * factor for factor in (1.0, 1.02, 0.99)], count=count, world_size=count)
        rows.append((configuration("ddp", values={"nproc": count}, per_device_batch_size=100 // count), made))
    analysis = analyse(report_of(*rows))
    (axis,) = figures.FIGURES["scaling.png"](analysis).axes
    base = geometric_mean((2.0, 2.04, 1.97)) / geometric_mean((1.0, 1.02, 0.99))
    ((measured, _, (bars,)),) = (container for container in axis.containers if "DDP" in container.get_label())
    for entry, segment in zip(reversed(analysis.rows[1:]), bars.get_segments(), strict=True):
        assert [*segment[:, 1]] == pytest.approx([entry.standing.speed_up.low, entry.standing.speed_up.high])
    assert [*measured.get_xdata()] == [*times]
    assert [*measured.get_ydata()] == pytest.approx([base / seconds for seconds in times.values()])
    (ideal,) = (line for line in axis.get_lines() if line.get_label().startswith("ideal"))
    assert [*ideal.get_xdata()] == [*ideal.get_ydata()] == [1, 4]


def test_a_map_shows_for_which_models_and_batch_sizes_a_method_is_faster(drawn):
    times = {("lenet", 64): 1.0, ("lenet", 256): 0.5, ("mlp", 64): 1.6, ("mlp", 256): 1.3}
    rows = []
    for (model, size), seconds in times.items():
        values, spread = {"model": model, "batch_size": size}, 0.3 * (seconds == 1.0)  # one is undecided
        for method, time in (("single", 1.0), ("ddp", seconds)):
            made = runs(method, [time, time * 1.01 + spread, time * 0.99], global_batch_size=size)
            rows.append((configuration(method, values=values), made))
    analysis = analyse(report_of(*rows))
    figure = figures.FIGURES["map.png"](analysis)
    (axis,) = figure.axes
    assert axis.yaxis_inverted() and (axis.get_xlabel(), axis.get_ylabel()) == ("batch size", "model")
    seen = {label.get_text(): label.get_position() for label in (*axis.get_xticklabels(), *axis.get_yticklabels())}
    cells = {text.get_position(): text.get_text() for text in axis.texts}
    patches = {(patch.get_x() + 0.5, patch.get_y() + 0.5): patch for patch in axis.patches}
    for (model, size), seconds in times.items():
        place = seen[str(size)][0], seen[model][1]
        red, _, blue, _ = patches[place].get_facecolor()
        assert (blue > red, blue < red) == (seconds < 1.0, seconds > 1.0)  # purple where it is faster
        assert bool(patches[place].get_hatch()) == (seconds == 1.0)
        assert seconds == 1.0 or shows(cells[place], 1 / seconds)
    assert figure.get_suptitle().startswith("Faster than single: “DDP” in 1 of 4 cases\n")
    pays = [text.rpartition("its baseline ")[2] for text in sweep_sentences(analysis) if "its baseline " in text]
    assert pays == ["at 256.", "at none of them."]
    known = [replace(run, foreign_cores=1.0) for run in report_of(*rows).outcomes]
    disturbed = " ".join(sweep_sentences(analyse(replace(report_of(*rows), outcomes=tuple(known)))))
    assert "its baseline" not in disturbed
    assert drawn["map.png"] is None
    others = [(configuration("fsdp", values=row.values), made) for row, made in rows[1::2]]
    one, other = figure_of("map.png", *rows, *others).axes  # side by side
    assert one.get_subplotspec().rowspan == other.get_subplotspec().rowspan


# ---- scripts


UNLIKE = {"slices": (2.0, 1.0, 1.7)}
ROWS = [
    script("mine", 20.0, blocks=(1.0, 1.02, 0.97), **UNLIKE),
    script("other", 16.0, samples=130, blocks=(1.0, 0.99, 1.04), **UNLIKE),
]
THEN = [
    script("", 26.0, blocks=(1.0, 1.01, 1.03), **UNLIKE),
    script("", 18.0, samples=130, blocks=(1.0, 1.02, 1.03), **UNLIKE),
]
EARLIER = [(counterpart(row, BEFORE, BEFORE, ()), made) for (row, _), (_, made) in zip(ROWS, THEN, strict=True)]
OF_SCRIPTS = analyse(report_of(*ROWS, *EARLIER, warmup=10))


def per_thousand(results):
    """Seconds per 1,000 samples."""
    timed = [result.epochs[1:] for result in results]
    return geometric_mean(
        1000 * sum(one.train_seconds for one in run) / sum(one.samples for one in run) for run in timed
    )


def test_scripts_are_shown_by_the_time_for_1000_samples(tmp_path):
    now, then = ([per_thousand(results) for _, results in rows] for rows in (ROWS, EARLIER))
    text = markdown_of(OF_SCRIPTS, tmp_path)
    assert "Accuracy (%)" not in next(answer_rows(OF_SCRIPTS)) and "slices" in row_plots.phase_unit(OF_SCRIPTS)
    before = text.partition("\n## Now and before\n")[2]
    rows = [line.split("|")[2:5] for line in before.splitlines() if line.startswith(("| mine", "| other"))]
    for (old, new, ratio), earlier, seconds in zip(rows[:2], then, now, strict=True):
        assert [float(old), float(new)] == pytest.approx([earlier, seconds], rel=5e-3)
        assert float(ratio.split("[")[0]) == pytest.approx(earlier / seconds, abs=0.005)
    write_html(OF_SCRIPTS, tmp_path / "report.html", [])
    page = (tmp_path / "report.html").read_text()
    dots = [tuple(map(float, dot.split())) for dot in re.findall('data-at="(.*?)"', page)]
    expected = []
    for _, results in reversed(ROWS):  # the fastest first
        timed = [(one, block) for block, result in enumerate(results, 1) for one in result.epochs[1:]]
        expected += sorted((1000 * one.train_seconds / one.samples, block, one.epoch) for one, block in timed)
    assert dots == [(block, epoch, pytest.approx(time, abs=5e-4)) for time, block, epoch in expected]
    means = [float(mean) for mean in re.findall(r"<td>([\d.]+) s</td>", page)]
    assert means == [pytest.approx(per_thousand(results), abs=0.005) for _, results in reversed(ROWS)]
    assert "s per 1,000 samples" in page and "without warm-up" not in page


def test_scripts_have_looks_of_their_own_and_no_settings_of_methods():
    looks = [row_plots.style_of(OF_SCRIPTS, entry) for entry in OF_SCRIPTS.rows]
    assert looks[0]["color"] != looks[1]["color"] and [look["alpha"] for look in looks] == [1.0, 1.0]
    ((_, settings),) = sections(OF_SCRIPTS, [], [], "plain")["Settings"]
    assert [line.split()[0] for line in settings.splitlines()[1:]] == ["repeats", "seed", "warmup"]


def test_what_is_of_a_slice_is_not_called_an_epochs():
    outcomes = (replace(one, cards=(CardUse("cuda:0", joules=20.0),)) for one in OF_SCRIPTS.report.outcomes)
    sizes = (replace(one, result=replace(one.result, reserved_memory_bytes=(1,))) for one in outcomes)
    shown = sections(analyse(replace(OF_SCRIPTS.report, outcomes=tuple(sizes))), [], [], "plain")
    for title, parts in shown.items():
        if title.startswith(("Every slice", "The GPUs", "Result")):
            table = next(content for kind, content in parts if kind == TABLE)
            heading = {"Every": "slice", "The": "Energy (J per slice)", "Result": "Samples/J"}
            assert heading[title.split()[0]] in table and "epoch" not in table
        assert "epoch" not in title
