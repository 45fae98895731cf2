"""What a reader sees of comparisons unlike that of test_seen.py: scripts, GPUs, sweeps, and any baseline."""

import re
from dataclasses import replace
from itertools import product
from math import log
from statistics import fmean, geometric_mean, median

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from comparison.judge.analysis import analyse
from comparison.outcomes import CardUse
from comparison.plan.counterparts import BEFORE, counterpart
from comparison.show import figures, plots, remarks
from comparison.show.report import write_html
from comparison.show.sections import TABLE, sections
from comparison.show.tables import answer_rows
from comparison.show.terminal import terminal_text
from comparison.show.verdict import where_time_goes
from tests.reports import (
    DDP,
    SINGLE,
    configuration,
    ddp,
    each_outcome,
    halves,
    make_result,
    markdown_of,
    rank,
    report_of,
    runs,
    single,
    unlike,
)


def numbers(text):
    return [float(number.replace(",", "")) for number in re.findall(r"-?\d[\d,]*\.?\d*", text)]


# ---- scripts


def script(name, *seconds, samples=100):
    """A script's row. Its slices have 1, 2 and 3 times as many samples; the first is the warm-up."""
    made = []
    for factor in seconds:
        result = make_result("script", [factor * slow for slow in (2.0, 1.0, 1.7)], global_batch_size=samples)
        slices = tuple(replace(one, samples=samples * one.epoch, steps=one.epoch) for one in result.epochs)
        made.append(replace(result, epochs=slices))
    return replace(configuration("script", f"script-{name}"), label=name), made


BATCHES = (100, 130)
ROWS = [script("mine", 1.0, 1.02, 0.97), script("other", 0.8, 0.79, 0.83, samples=130)]
THEN = [script("", 1.3, 1.31, 1.34), script("", 0.9, 0.92, 0.93, samples=130)]
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
    assert "Accuracy (%)" not in next(answer_rows(OF_SCRIPTS)) and "slices" in plots.phase_unit(OF_SCRIPTS)
    tables = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    header = next(row for row in tables if row[0] == "Method")
    every = [row for row in tables if row[0] in ("mine", "other")]
    for row, seconds, batch in zip(every[:2], now, BATCHES, strict=True):
        shown = dict(zip(header, row, strict=True))
        assert float(shown["Time per 1,000 samples (s)"]) == pytest.approx(seconds, rel=5e-3)
        assert float(shown["Samples/s"]) == pytest.approx(1000 / seconds, abs=0.5)
        assert shown["Samples per step"] == str(batch)
    for row, earlier, seconds in zip(every[2:4], then, now, strict=True):
        assert [*map(float, row[1:3])] == pytest.approx([earlier, seconds], rel=5e-3)
        assert numbers(row[3])[0] == pytest.approx(earlier / seconds, abs=0.005)
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
    looks = [plots.style_of(OF_SCRIPTS, entry) for entry in OF_SCRIPTS.rows]
    assert looks[0]["color"] != looks[1]["color"] and [look["alpha"] for look in looks] == [1.0, 1.0]
    parts = {section.heading: section.parts for section in sections(OF_SCRIPTS, [], [], "plain")}
    ((_, settings),) = parts["Settings"]
    assert [line.split()[0] for line in settings.splitlines()[1:]] == ["repeats", "seed", "warmup"]


def test_what_is_of_a_slice_is_not_called_an_epochs():
    outcomes = (replace(one, cards=(CardUse("cuda:0", joules=20.0),)) for one in OF_SCRIPTS.report.outcomes)
    sizes = (replace(one, result=replace(one.result, reserved_memory_bytes=(1,))) for one in outcomes)
    for section in sections(analyse(replace(OF_SCRIPTS.report, outcomes=tuple(sizes))), [], [], "plain"):
        if section.heading.startswith(("Every slice", "The GPUs", "Result")):
            table = next(content for kind, content in section.parts if kind == TABLE)
            heading = {"Every": "slice", "The": "Energy (J per slice)", "Result": "Samples/J"}
            assert heading[section.heading.split()[0]] in table and "epoch" not in table
        assert "epoch" not in section.heading


def test_the_size_of_a_device_is_said_of_methods_on_a_cpu_alone():
    for report, said in ((OF_SCRIPTS.report, False), (report_of(ON_GPU), False), (report_of(SINGLE), True)):
        assert ("Device: 1 of 1 core." in terminal_text(analyse(report))) == said


# ---- figures


def figure(name, *rows, **settings):
    """A figure of a comparison with these rows, or None."""
    return figures.FIGURES[f"{name}.png"](analyse(report_of(*rows, **settings)))


def test_later_values_of_a_sweep_are_paler():
    rows = [(configuration(values={"num_workers": n}, num_workers=n), runs(workers_per_process=n)) for n in (0, 2, 4)]
    analysis = analyse(report_of(*rows, DDP))
    alphas = [plots.style_of(analysis, entry)["alpha"] for entry in analysis.rows]
    assert alphas == pytest.approx([1.0, 0.675, 0.35, 1.0])


@pytest.mark.parametrize("baseline", ["single", "ddp", "fsdp"])
def test_the_memory_and_the_phases_of_any_baseline(baseline):
    analysis = analyse(unlike(baseline=baseline))
    results = {entry.name: entry.row.results for entry in analysis.done if not entry.row.simulated}
    peaks = {name: median(max(one.peak_memory_bytes) for one in every) for name, every in results.items()}
    ratios = {name: peak / peaks[baseline] for name, peak in peaks.items() if name != baseline}
    most = max(ratios, key=lambda name: abs(log(ratios[name])))
    title = figures.FIGURES["memory.png"](analysis).get_suptitle()
    assert title.startswith(f"“{most.upper()}” needs {ratios[most]:.2f} times the memory of “{baseline.upper()}”\n")
    much = {name for name, ratio in ratios.items() if not 0.8 < ratio < 1.2}
    assert {entry.name for entry in analysis.rows if entry.much_memory} == much
    threads = {name: every[0].threads_per_process * every[0].world_size for name, every in results.items()}
    for entry, part in product(analysis.rows, ("data", "forward")):
        if entry.name in ratios:
            time = fmean(getattr(one.phases, part) for result in results[baseline] for one in result.epochs[1:])
            ideal = time * threads[baseline] / threads[entry.name]
            assert plots.ideal_phase(analysis, entry, part) == pytest.approx(ideal)


def test_a_curve_needs_a_row_with_several_epochs():
    rows = (configuration(), runs(epochs=1)), (configuration("ddp"), runs("ddp"))
    assert figure("curves", *rows, target_accuracy=0.6)
    assert figure("curves", rows[0]) is None


@pytest.mark.parametrize("share, shown", [(0.009, False), (0.011, True)])
def test_a_phase_of_less_than_a_hundredth_of_a_step_has_no_panel(share, shown):
    waits = 100 * share / (1 - share)
    rows = [(configuration(f"ddp-{data}"), runs(phases=(data, 0.0, 40.0, 60.0, 0.0))) for data in (0.0, waits)]
    assert ("data" in plots.phases_shown(analyse(report_of(*rows)))) == shown


def test_the_numbers_in_a_map_are_readable():
    rows = []
    for (model, size), seconds in zip(product(("lenet", "mlp"), (64, 256)), (0.3, 0.9, 1.1, 3.3), strict=True):
        values = {"model": model, "batch_size": size}
        for method, time in (("single", 1.0), ("ddp", seconds)):
            made = runs(method, [time, time * 1.001, time * 0.999], global_batch_size=size)
            rows.append((configuration(method, values=values, **values), made))
    (axis,) = figure("map", *rows).axes
    lights = [np.dot(to_rgb(patch.get_facecolor()), (0.2126, 0.7152, 0.0722)) for patch in axis.patches]
    for patch, text, light in zip(axis.patches, axis.texts, lights, strict=True):
        assert abs(light - np.mean(to_rgb(text.get_color()))) > 0.4
        assert (patch.get_x() + 0.5, patch.get_y() + 0.5) == text.get_position()
    assert lights[0] < lights[1] and lights[3] < lights[2]  # a larger effect has a fuller colour


def test_a_page_embeds_the_figures_that_it_does_not_draw(tmp_path):
    for name in figures.FIGURES:
        (tmp_path / name).with_suffix(".svg").write_text(f"<svg><title>{name} &amp;\n x</title></svg>")
    write_html(analyse(report_of(SINGLE, DDP)), tmp_path / "report.html", [tmp_path / name for name in figures.FIGURES])
    embedded = re.findall(r'alt="(\S+) &amp; x"', (tmp_path / "report.html").read_text())
    assert embedded == [name for name in figures.FIGURES if name not in ("phases.png", "timeline.png")]


# ---- sentences


def gpus(report, *found):
    return replace(report, environment={**report.environment, "gpus": [*found]})


NO_GPU, ON_CPU = "Anything on a GPU: PyTorch finds none", "Anything on this machine's GPUs: the comparison was run"
UNSEEN, MATHS = "Whether other programs disturbed", "Whether every method computes the same"
LEARNS, LADDER, MEMORY = (
    "What a script learns",
    "What exchanging gradients costs DDP",
    "it ran out of memory at a batch of 100",
)
ON_GPU = (configuration(device="gpu"), runs(seconds=(2.0, 2.02, 1.98)))
FULL = (configuration("fsdp"), ["out of memory"])


@pytest.mark.parametrize(
    "report, said",
    [
        (report_of(SINGLE), {NO_GPU, MATHS}),
        (gpus(report_of(SINGLE, DDP), "H200"), {ON_CPU, LADDER, MATHS}),
        (gpus(report_of(ON_GPU), "H200"), {MATHS}),
        (each_outcome(report_of(SINGLE), foreign_cores=None), {NO_GPU, UNSEEN, MATHS}),
        (report_of(SINGLE, DDP, (configuration("ddp-no-sync"), runs()), FULL), {NO_GPU, MATHS, MEMORY}),
        (OF_SCRIPTS.report, {NO_GPU, LEARNS}),
        (report_of(SINGLE, *ROWS), {NO_GPU, LEARNS, MATHS}),
    ],
)
def test_what_was_not_measured(report, said):
    sentences = remarks.not_measured(report)
    assert len(sentences) == len(said) and all(any(words in one for one in sentences) for words in said), sentences


def test_definitions_fit_the_comparison():
    some = remarks.definitions(report_of(SINGLE, epochs=1, scaling="weak", equal_within=0.07))
    text = " ".join(some)
    for words in ("there is only one, with its warm-up", "Batch sizes are per device", "Whole runs: ", "7%"):
        assert words in text, words
    other = " ".join(remarks.definitions(gpus(replace(report_of(ON_GPU), looks=((3, 0.5),)), "H200")))
    for words in ("Phases are timed on the GPU", "Interim analyses", "What PyTorch allocated", "3%", "is left out"):
        assert words in other and words not in text, words


def test_what_is_outside_of_the_training_is_told_if_whole_runs_decide():
    both = rank(halves(forward=11.0)), rank(halves(forward=11.0))
    rows = single(), ddp(*both, startup_seconds=7.0)
    for max_steps, told in ((None, [False, True]), (10, [False])):
        sentences = where_time_goes(analyse(report_of(*rows, max_steps=max_steps)))
        assert ["outside the training, start-up" in words for words in sentences] == told


# ---- the screen


@pytest.mark.parametrize("single_run", [False, True])
def test_the_memory_is_left_out_only_if_the_screen_is_too_narrow(single_run):
    rows = [(row, made[:1] if single_run else made) for row, made in (SINGLE, DDP)]
    analysis = analyse(report_of(*rows))
    answers = [*answer_rows(analysis)]
    full = [name for name in answers[0] if name not in ("Accuracy (%)", "Result")]
    whole_line = sum(max(len(name), *(len(str(row[name] or "–")) for row in answers)) + 2 for name in full) - 2
    assert 38 < whole_line < 60 and full[-1] == "Memory (MiB)"
    for width in range(38, 60):
        table = next(part for part in terminal_text(analysis, width=width).split("\n\n") if part.startswith("Method "))
        shown = re.split(r"\s{2,}", table.splitlines()[0])
        assert shown == (full if whole_line <= width else full[:-1])


@pytest.mark.parametrize(
    "seconds, last",
    [(3.0, ["SINGLE", "… 7 more rows"]), (1.085, ["SINGLE", "… 7 more rows"]), (0.9, ["DDP-7", "… 7 more rows"])],
)
def test_a_long_table_has_its_first_rows_and_the_baseline(seconds, last):
    others = [(configuration("ddp", f"ddp-{n}"), runs("ddp", (1 + n / 100,) * 3)) for n in range(15)]
    others = [(replace(row, label=row.name.upper()), made) for row, made in others]
    baseline = configuration(), runs(seconds=(seconds,) * 3)
    lines = terminal_text(analyse(report_of(*others, baseline)), width=80).split("\n\n")[2].splitlines()
    assert len(lines) == 11 and [line.strip().split("  ")[0] for line in lines[-2:]] == last
