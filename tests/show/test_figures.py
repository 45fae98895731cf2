"""The figures of a comparison: what their titles and axes say, and that every text lies inside its figure."""

import itertools
from dataclasses import replace
from math import log
from statistics import fmean, median
from unittest.mock import Mock

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from common.files.plots import draw_curves, draw_timeline
from common.files.results import PHASES, Span
from comparison.judge.analysis import analyse
from comparison.methods import METHODS, UNKNOWN
from comparison.show import figures, plots
from comparison.show.remarks import not_measured
from comparison.show.sweep_plots import curves_finding, find_maps
from comparison.show.verdict import where_time_goes
from comparison.words import speaking
from tests.reports import (
    DDP,
    LINK,
    OWN_PHASES,
    SINGLE,
    configuration,
    each_epoch,
    make_result,
    report_of,
    row_of,
    runs,
    script,
    swept,
    unlike,
)


def drawn(name, *rows, **settings):
    """A figure of a comparison with these rows."""
    return figures.FIGURES[f"{name}.png"](analyse(report_of(*rows, **settings)))


def steady(method, seconds, **values):
    """A row whose three runs hardly differ."""
    return configuration(method), runs(method, (seconds, seconds * 1.01, seconds * 0.99), **values)


def rows(panels, kind):
    """One device and `panels` other methods, each with two batch sizes, and with two models if `kind` is a map."""
    values = [{"batch_size": batch} for batch in (64, 256)]
    if kind == "map":
        values = [{"model": model, **own} for model in ("lenet", "resnet8") for own in values]
    made = []
    for number, method in enumerate(("single", "ddp", "fsdp", "pipeline", "dp")[: panels + 1]):
        for own in values:
            size, seconds = own["batch_size"], (1.0 + number, 1.01, 1.02)
            results = runs(method, seconds, count=1 + number % 2, global_batch_size=size)
            made.append((configuration(method, values=own), results))
    return made


LONG = "/home/somebody/networks/with_a_name_that_is_longer_than_a_line.py with options, pipeline ×2, 4 micro-batches"


def named_at_length(made):
    """The rows with long names."""
    return [(replace(row, label=f"{LONG} {number}"), results) for number, (row, results) in enumerate(made)]


@pytest.mark.filterwarnings("ignore:Glyph .* missing from font")
@pytest.mark.parametrize(
    "panels, language",
    [(1, "en"), (2, "zh"), *(pytest.param(4, language, marks=pytest.mark.slow) for language in ("en", "zh"))],
)
@pytest.mark.parametrize("kind", ["map", "sweep", "fit", "names"])
def test_every_text_lies_inside_its_figure(kind, panels, language, monkeypatch, tmp_path):
    shown = {}
    monkeypatch.setattr(figures, "find_font", lambda language: None if language == "en" else "DejaVu Sans")
    monkeypatch.setattr("matplotlib.backends.backend_svg.FigureCanvasSVG", lambda _: Mock())
    monkeypatch.setattr(figures, "save_figure", lambda figure, path: shown.setdefault(path.name, figure))
    long = {"dataset": "synthetic-mnist-with-a-long-name", "batch_size": [64, 256], "max_steps": 100}
    made = named_at_length(rows(panels, kind)) if kind == "names" else rows(panels, kind)
    report = report_of(*made, fit_batch=kind == "fit", **long)
    report = replace(report, timelines={row.name: (Span(0, "step", "forward", 0.0, 1.0),) for row, _ in made})
    with speaking(language):
        figures.draw_all(analyse(report), tmp_path)
    assert {"map.png" if kind == "map" else "sweep-batch-size.png", "curves.png", "speed-up.png"} <= {*shown}
    for name, figure in shown.items():
        figure.draw_without_rendering()  # lays it out
        width, height = figure.get_size_inches()
        for axis in figure.axes:  # each line of a panel has room
            lines = axis.get_ylim()[0] + 0.5 if axis.yaxis_inverted() else 5
            assert axis.get_position().height * height > 0.2 * lines, (name, axis.get_position().height * height)
        box = figure.get_tightbbox()  # in inches
        assert min(box.x0, box.y0, width - box.x1, height - box.y1) > -0.02, (name, box, (width, height))


def test_a_figure_grows_by_the_lines_of_its_title_and_of_the_longest_one_of_a_panel():
    figure = Figure((5, 3))
    panels = [axes.set_title("panel " * words) for axes, words in zip(figure.subplots(1, 3), (2, 9, 30), strict=True)]
    texts = figure.suptitle("figure " * 30), *panels
    heights = [text.get_window_extent().height for text in texts]
    figures.wrap_titles(figure)
    title, *of_panels = (text.get_window_extent().height - height for text, height in zip(texts, heights, strict=True))
    room = figures.AXES_SHARE * (figure.bbox.width - 2 * figures.MARGIN * figure.dpi) / len(panels)
    assert all(text.get_window_extent().width <= room for text in panels)
    assert "\n" not in panels[0].get_text()  # it has room
    assert figure.get_figheight() == pytest.approx(3 + (title + max(of_panels)) / figure.dpi)


def test_the_legend_of_a_timeline_leaves_out_what_is_too_short_to_see():
    axis, spans = Figure().subplots(), [Span(0, "step", "data", 0.0, 0.08), Span(0, "step", "forward", 0.08, 100.0)]
    spans += [Span(0, f"cuda:{number}", "kernel", 0.0, 0.08) for number in range(5)]
    assert [*draw_timeline(axis, tuple(spans))] == ["forward"]
    places = [bar.get_y() for bar in axis.patches[2:]]
    assert places == sorted(places)
    colors = [to_rgb(PHASES[name].color) for name in ("data", "forward", "rest")]
    unknown = Figure().subplots()
    draw_timeline(unknown, (Span(0, "step", "own", 0.0, 1.0),))
    assert [bar.get_facecolor()[:3] for bar in (*axis.patches[:2], *unknown.patches)] == colors
    others = Span(0, "link", "all_reduce", 2.0, 11.0), Span(0, "cuda:0", "sgemm", 3.0, 8.0)
    lanes = draw_timeline(Figure().subplots(), (*spans, *others, Span(1, "step", "backward", 0.0, 40.0)))
    assert {name: (bar.get_x(), bar.get_width()) for name, bar in lanes.items()} == {
        "forward": (0.08, 99.92),
        "messages between ranks": (2.0, 9.0),
        "kernels on a GPU": (3.0, 5.0),
        "backward": (0.0, 40.0),
    }
    assert lanes["backward"].get_y() > max(bar.get_y() for name, bar in lanes.items() if name != "backward")


def learned(method, *ends):
    """A row whose runs have two epochs and end with these test accuracies; None stands for a failed run."""
    results = runs(method, (2.0,) * len(ends), epochs=2)
    made = [
        replace(result, epochs=(result.epochs[0], replace(result.epochs[1], test_accuracy=end))) if end else "failed"
        for result, end in zip(results, ends, strict=True)
    ]
    return configuration(method), made


def test_accuracies_are_compared_between_runs_with_the_same_seed():
    report = report_of(learned("single", 0.70, 0.80, 0.60), learned("ddp", None, 0.83, 0.62), learned("dp", None))
    worse = report_of(learned("single", 0.70, 0.80), learned("ddp", 0.71, 0.81), learned("dp", 0.40, 0.50))
    alike = report_of(learned("single", 0.70, 0.80), learned("ddp", 0.7004, 0.7999))
    close = report_of(learned("single", 0.70, 0.80), learned("ddp", 0.7252, 0.8256))  # rounded up
    for compared, finding in (
        (close, "Final accuracy: every row within 2.6 points of its baseline (farthest: “DDP”)"),
        (report, "Final accuracy: every row within 2.5 points of its baseline (farthest: “DDP”)"),
        (worse, "Final accuracy: every row within 30.0 points of its baseline (farthest: “DP”)"),
        (alike, "Final accuracy: every row within 0.1 points of its baseline"),
        (report_of(SINGLE), "Accuracy over the training"),
    ):
        assert curves_finding(analyse(compared).done) == finding


@pytest.mark.parametrize("apart, axes", [(0.009, ["seconds of training"]), (0.011, ["epoch", "seconds of training"])])
def test_accuracy_is_drawn_over_epochs_only_if_rows_differ_by_more_than_a_point(apart, axes):
    others = learned("ddp", 0.70 + 2 * apart, 0.70), learned("dp", 0.70, 0.70)
    panels = drawn("curves", learned("single", 0.70, 0.70), *others).axes
    assert [axis.get_xlabel() for axis in panels] == axes
    for axis in panels:
        single, ddp, _ = axis.get_lines()
        assert single.get_ydata() == pytest.approx([60, 70])
        assert ddp.get_ydata() == pytest.approx([60, 70 + 100 * apart])


def test_a_dot_without_a_claim_says_so():
    undecided = (configuration("ddp"), runs("ddp", (1.5, 2.5, 1.9)))
    unequal = steady("fsdp", 1.0, workers_per_process=2)
    figure = drawn("speed-up", SINGLE, undecided, unequal, allow_unequal=True)
    words = [text.get_text().partition("], ")[2] for text in figure.axes[0].texts]
    assert words == ["UNEQUAL settings", "undecided", "", ""] and "left out" not in figure.get_supxlabel()
    failed, *others = swept("single", "ddp", batch_size=(64, 256))  # one row has no baseline
    for rows in (
        (SINGLE, undecided, (configuration("dp"), runs("dp", simulated=True))),
        [(failed[0], ["failed"]), *others],
    ):
        assert drawn("speed-up", *rows).get_supxlabel().endswith("\n1 uncompared row left out")


def test_the_title_of_the_phases_ignores_simulated_rows():
    simulated = (configuration("dp"), runs("dp", phases=(1.0, 0.5, 20.0, 99.0, 3.0), simulated=True))
    halved = (configuration("ddp"), runs("ddp", count=2, phases=(1.0, 0.5, 25.0, 40.0, 3.0), world_size=2))
    for rows, title in (
        ([halved, simulated], "Largest excess over ideal scaling: backward of “DDP”, 40.0 instead of 20.0 ms"),
        ([simulated], "Where a step's time goes"),
    ):
        assert plots.phase_finding(analyse(report_of(SINGLE, *rows))) == title


def test_rows_that_cannot_be_used_are_never_named_the_fastest():
    """DDP without exchange and FSDP with unequal settings are faster than DDP here."""
    values = {"model": "mlp", "batch_size": 100}
    rows = [(configuration(values=values, model="mlp"), runs(peak_memory_bytes=(100 * 2**20,)))]
    for method, seconds, workers in (("ddp-no-sync", 0.5, 0), ("fsdp", 0.6, 2), ("ddp", 1.0, 0)):
        planned = configuration(method, values=values, model="mlp", per_device_batch_size=50, num_workers=2 * workers)
        used = {"count": 2, "peak_memory_bytes": (50 * 2**20,) * 2, "workers_per_process": workers}
        rows.append((planned, runs(method, (seconds, seconds + 0.01, seconds - 0.01), **used)))
    analysis = analyse(report_of(*rows, allow_unequal=True))
    assert all(entry.standing.speed_up for entry in analysis.rows) and list(find_maps(analysis)) == ["ddp"]
    name = "DDP (model mlp, batch size 100)"
    assert plots.speed_up_finding(analysis.done).startswith(f"“{name}” is 2.00 times as fast")
    assert [words.partition(":")[0] for words in where_time_goes(analysis)] == [name]


def test_every_method_has_a_distinct_look():
    looks = [method.look for method in (*METHODS.values(), UNKNOWN)]
    for key in ("color", "linestyle", "marker"):
        assert len({str(getattr(look, key)) for look in looks}) == len(looks)


@pytest.mark.parametrize("methods, drawn", [(3, True), (4, False)])
def test_more_than_thirty_rows_are_not_drawn_one_by_one(methods, drawn, monkeypatch, tmp_path):
    names = ("single", "ddp", "fsdp", "pipeline")[:methods]
    values = [{"model": model, "batch_size": size} for model in ("lenet", "mlp") for size in (16, 32, 64, 128, 256)]
    rows = [(configuration(name, values=own), runs(name, epochs=1)) for name in names for own in values]
    monkeypatch.setattr(figures, "keep_figure", lambda figure, path: path)
    shown = {path.name for path in figures.draw_all(analyse(report_of(*rows)), tmp_path)}
    assert "map.png" in shown and ({"speed-up.png", "phases.png"} <= shown) == drawn == ("speed-up.png" in shown)
    assert any("40 are too many to draw" in line for line in not_measured(report_of(*rows))) != drawn


@pytest.mark.parametrize("epochs, marked", [(20, True), (21, False)])
def test_the_curves_of_long_trainings_have_no_markers(epochs, marked):
    (axis,) = drawn("curves", SINGLE, (configuration("ddp"), runs("ddp", epochs=epochs))).axes
    assert [line.get_marker() not in ("", "None") for line in axis.get_lines()] == [True, marked]


def test_the_values_of_a_map_are_in_the_order_of_the_plan_whatever_failed():
    made = rows(1, "map")
    made[4] = (made[4][0], ["failed"])  # DDP, with the first model and the smaller batch
    (axis,) = drawn("map", *made).axes
    assert [text.get_text() for text in axis.get_xticklabels()] == ["64", "256"]
    assert [text.get_text() for text in axis.get_yticklabels()] == ["lenet", "resnet8"]


def test_a_map_colors_no_cell_that_is_practically_equal():
    made = [(row, runs(row.method, (2.0 if row.method == "single" else 1.7,) * 3)) for row, _ in rows(1, "map")]
    for margin, colored in ((None, True), (0.3, False)):
        (axis,) = drawn("map", *made, equal_within=margin).axes
        red, green, blue, _ = axis.patches[0].get_facecolor()
        assert axis.texts[0].get_text() == "1.18" and not axis.patches[0].get_hatch()
        assert (max(red, green, blue) - min(red, green, blue) > 0.02) == colored


def at_each(method, counts, **values):
    """Rows of a sweep over the number of devices."""
    return [
        (
            replace(configuration(method, values={"nproc": count, **values}), label=f"{method.upper()} ×{count}"),
            runs(method, (2.0 / count, 2.02 / count, 1.98 / count), count=count, world_size=count),
        )
        for count in counts
    ]


@pytest.mark.parametrize(
    "baseline, made, ideal",
    [
        ("single", [SINGLE, *at_each("ddp", (2, 4))], [1, 4]),
        ("ddp", [*at_each("ddp", (2, 4)), *at_each("fsdp", (2, 4))], None),  # each has a baseline of as many devices
        (  # whose four threads are as much as four devices
            "single-all-cores",
            [
                (configuration("single-all-cores", threads=4), runs("single-all-cores", threads_per_process=4)),
                *at_each("ddp", (2, 4)),
            ],
            [1 / 4, 1],
        ),
    ],
)
def test_the_ideal_line_is_relative_to_the_devices_of_the_baseline(baseline, made, ideal):
    (axis,) = drawn("scaling", *made, baseline=baseline, project=["8"]).axes
    lines = {line.get_label(): line for line in axis.get_lines()}
    found = lines.get("ideal: linear speed-up")
    assert (found and [*found.get_ydata()]) == ideal


def test_series_that_differ_in_a_setting_have_different_names():
    made = [row for parts in (2, 4) for row in at_each("pipeline", (2, 4), micro_batches=parts)]
    labels = [text.get_text() for text in drawn("scaling", SINGLE, *made).legends[0].get_texts()]
    assert {"pipeline (micro-batches 2), measured", "pipeline (micro-batches 4), measured"} < {*labels}
    buckets = [
        (configuration("ddp", values={"bucket_mb": size}), runs("ddp", count=2, world_size=2)) for size in (1.0, 25.0)
    ]
    assert [row.label for row in report_of(SINGLE, *buckets).rows[1:]] == [
        "DDP (--bucket-mb 1.0)",
        "DDP (--bucket-mb 25.0)",
    ]


@pytest.mark.parametrize(
    "single, ddp, words, ends",
    [
        ((0.7, 0.8), (0.73, None), "; mean of the runs with the same seeds", [70, 73]),
        ((0.7, None), (None, 0.73), "; mean of the runs", [70, 73]),
        ((0.7, 0.8), (0.73, 0.8), "; mean of the runs", [75, 76.5]),
    ],
)
def test_the_curves_show_and_name_the_runs_with_the_same_seeds(single, ddp, words, ends):
    figure = drawn("curves", learned("single", *single), learned("ddp", *ddp))
    assert figure.get_suptitle().endswith(f"each{words}")
    assert [line.get_ydata()[-1] for line in figure.axes[0].get_lines()] == pytest.approx(ends)


@pytest.mark.parametrize(
    "rows, scale",
    [
        ((steady("ddp", 0.26), steady("fsdp", 1.0)), "linear"),
        ((steady("ddp", 0.24), steady("fsdp", 1.0)), "log"),
        ((steady("ddp", 0.4), steady("fsdp", 4.0)), "log"),
        (((configuration("ddp"), runs("ddp", (0.5, 1.5))), (configuration("fsdp"), runs("fsdp", (2.0, 0.9)))), "log"),
    ],
)
def test_the_axis_of_ratios_is_logarithmic_only_if_dots_or_intervals_span_more_than_a_factor_of_eight(rows, scale):
    (axis,), (busy,) = (drawn("speed-up", SINGLE, *rows, foreign_cores=own).axes for own in ({}, {"ddp": 0.9}))
    assert axis.get_xscale() == scale and (len(axis.collections), len(busy.collections)) == (2, 1)  # intervals


@pytest.mark.parametrize("unit", [0.01, 1.0, 1000.0])
@pytest.mark.parametrize("long", [False, True])
def test_no_bar_of_a_phase_covers_its_number(long, unit):
    made = [(configuration(name), runs(name, phases=[unit * time for time in (1.5, 1, 20, 40, 3)])) for name in METHODS]
    figure = drawn("phases", *(named_at_length(made[:3]) if long else made[:3]))
    figure.draw_without_rendering()
    for axis in figure.axes:
        bars = {round(bar.get_y() + bar.get_height() / 2): bar.get_window_extent().x1 for bar in axis.patches}
        assert all(text.get_window_extent().x0 > bars[round(text.get_position()[1])] for text in axis.texts)
    numbers = {text.get_text() for axis in figure.axes for text in axis.texts}
    assert {"0.20", "0.40"} <= numbers if unit == 0.01 else f"{40 * unit:.1f}" in numbers


def test_long_values_at_an_axis_do_not_overlap():
    models = ("lenet", "mlp", "resnet8", "resnet18", "mobilenet", "transformer")
    figure = drawn("sweep-model", *swept("single", "ddp", "fsdp", model=models))
    figure.draw_without_rendering()
    for axis in figure.axes:
        labels = axis.get_xticklabels()
        boxes = [label.get_window_extent() for label in labels]
        rotated = {label.get_rotation() for label in labels} == {30}
        assert rotated or all(one.x1 < other.x0 for one, other in itertools.pairwise(boxes))


def test_numbers_on_a_map_have_enough_contrast_and_larger_effects_a_fuller_color():
    made, cells = [(row, runs(row.method, (2.0,) * 3)) for row, _ in rows(1, "map")], []
    for speed_up in (0.5, 0.6, 0.65, 0.8, 1.2, 1.4, 1.5, 1.55, 1.6, 2.0):
        made[4:] = [(row, runs("ddp", (2.0 / speed_up,) * 3)) for row, _ in made[4:]]
        (axis,) = drawn("map", *made).axes
        cell, number = (_luminance(color) for color in (axis.patches[0].get_facecolor(), axis.texts[0].get_color()))
        assert (max(cell, number) + 0.05) / (min(cell, number) + 0.05) > 4, speed_up
        cells.append(cell)
    assert cells[:4] == sorted(cells[:4]) and cells[4:] == sorted(cells[4:], reverse=True)


def _linear(color):
    return np.array([part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(color)])


def _luminance(color):
    """The relative luminance (WCAG)."""
    return float(np.array((0.2126, 0.7152, 0.0722)) @ _linear(color))


# How colors are seen without one kind of cones (G. M. Machado et al., 2009), in linear RGB; and linear RGB to CIE XYZ.
SEEN = {
    "all cones": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


@pytest.mark.parametrize("eyes", SEEN)
def test_the_colors_of_the_phases_differ_for_the_color_blind(eyes):
    """By the CIE's difference of 1976, of which 2 are just noticeable."""

    def lab(color):
        x, y, z = np.cbrt(XYZ @ np.clip(np.array(SEEN[eyes]) @ _linear(color), 0, 1) / (0.9505, 1, 1.089))
        return np.array((116 * y - 16, 500 * (x - y), 200 * (y - z)))

    colors = {name: lab(phase.color) for name, phase in PHASES.items()}
    pairs = itertools.combinations(colors, 2)
    near = {pair: far for pair in pairs if (far := np.linalg.norm(colors[pair[0]] - colors[pair[1]])) < 19}
    assert not near and all(1.05 / (_luminance(phase.color) + 0.05) > 3 for phase in PHASES.values())


def test_the_figure_of_one_run_names_all_its_devices_inside_the_figure(tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr("common.files.plots.save_figure", lambda figure, path: kept.append(figure))
    names = ["NVIDIA H100 80GB HBM3"] * 2 + ["NVIDIA A100-SXM4-80GB"]
    devices = tuple(f"cuda:{number} ({name})" for number, name in enumerate(names))
    result = make_result("ddp", devices=devices, reason=f"{LONG}; {LONG}")
    draw_curves(replace(result, config={**result.config, "model": LONG, "dataset": f"folder:{'x' * 120}"}), tmp_path)
    (figure,) = kept
    assert "ddp, 2 × NVIDIA H100 80GB HBM3, 1 × NVIDIA A100-SXM4-80GB" in " ".join(figure.get_suptitle().split())
    figure.draw_without_rendering()
    box = figure.get_tightbbox()
    assert box.x0 > 0 and box.x1 < figure.get_figwidth() and figure.axes[0].get_position().height > 0.4


@pytest.mark.parametrize("label, drawn_with", [("训练", True), ("train", False)])
def test_chinese_names_have_a_font_in_english_figures_too(label, drawn_with, tmp_path, monkeypatch):
    families = []
    monkeypatch.setattr(figures, "FONTS", ("none", "STIXGeneral"))  # the second comes with matplotlib
    monkeypatch.setattr(figures, "save_figure", lambda *_: families.append(matplotlib.rcParams["font.sans-serif"]))
    monkeypatch.setattr("matplotlib.backends.backend_svg.FigureCanvasSVG", lambda _: Mock())
    figures.keep_figure(drawn("memory", (replace(SINGLE[0], label=label), SINGLE[1])), tmp_path / "memory.png")
    assert families[0][0] == "DejaVu Sans" and ("STIXGeneral" in families[0]) == drawn_with


def test_a_phase_that_the_baseline_does_not_measure_has_no_ideal_time():
    alone, (other, results) = script("alone", 60), script("loads", 60)
    unmeasured = [each_epoch(result, phases=replace(OWN_PHASES, data=None, rest=40.0)) for result in alone[1]]
    waits = [each_epoch(result, phases=replace(OWN_PHASES, data=30.0, forward=21.0)) for result in results]
    title = plots.phase_finding(analyse(report_of((alone[0], unmeasured), (other, waits))))
    assert title == "Largest excess over ideal scaling: forward of “loads”, 21.0 instead of 20.0 ms"


def test_a_series_with_unequal_or_disturbed_rows_says_so():
    fast, slow = at_each("ddp", (2, 4)), at_each("fsdp", (2, 4))
    slow[1] = (slow[1][0], [replace(result, workers_per_process=2) for result in slow[1][1]])
    cases = {
        "ddp-nproc=4": {"DDP, measured, disturbed", "fsdp, measured, UNEQUAL settings, disturbed"},
        "": {"DDP, measured", "fsdp, measured, UNEQUAL settings"},
    }
    for busy, labels in cases.items():
        foreign = {busy: 0.9, "fsdp-nproc=4": 0.9} if busy else {}
        figure = drawn("scaling", SINGLE, *fast, *slow, allow_unequal=True, foreign_cores=foreign)
        assert labels < {" ".join(text.get_text().split()) for text in figure.legends[0].get_texts()}
        assert not busy or not any(np.ptp(own[2][0].get_segments()[-1][:, 1]) for own in figure.axes[0].containers)


def test_a_title_does_not_deny_what_a_row_that_trains_differently_shows():
    for others, finding in (
        ([steady("ddp-no-sync", 1.0)], "No row that trains the same is significantly faster than its baseline"),
        ([steady("ddp-no-sync", 2.0)], "No row is significantly faster than its baseline"),
        ([steady("ddp-no-sync", 1.0), steady("ddp", 1.25)], "“DDP” is 1.60 times as fast as “SINGLE”"),
    ):
        assert drawn("speed-up", SINGLE, *others).get_suptitle().startswith(f"{finding}\n")


def peak(method, size, **values):
    return configuration(method), runs(method, peak_memory_bytes=(size * 2**20,), **values)


@pytest.mark.parametrize(
    "rows, finding",
    [
        ([peak("ddp", 121), peak("fsdp", 82)], "“DDP” needs 1.21 times the memory of “SINGLE”"),  # 0.82 is too close
        ([peak("ddp", 119)], "No row needs 20% more or less memory than its baseline"),
        ([peak("ddp", 119), peak("dp", 999, simulated=True)], "No compared row needs 20% more or less memory than its"),
        ([], "Peak memory of a device"),
    ],
)
def test_the_title_about_memory_names_the_row_that_differs_most_if_that_is_much(rows, finding):
    assert drawn("memory", peak("single", 100), *rows).get_suptitle().startswith(finding)


def test_the_title_of_the_timelines_is_about_a_single_gpu():
    spans = Span(0, "step", "forward", 0.0, 4.0), Span(0, "cuda:0", "sgemm", 1.0, 2.0)
    one, two = {"A": spans}, {"A": spans, "B": (*spans, Span(0, "cuda:1", "sgemm", 1.0, 1.5))}
    shorter = {**two, "B": (spans[0], Span(0, "cuda:0", "sgemm", 1.0, 1.5), Span(0, "cuda:1", "sgemm", 1.0, 1.5))}
    for timelines in (one, two, shorter):
        title = plots.waiting_finding(timelines)
        assert title == "In “A”, the GPU runs kernels for 25% of the traced time"


def test_the_panels_of_a_sweep_are_in_the_order_of_the_plan_whatever_failed():
    made = swept("single", model=("lenet", "mlp", "resnet8"), batch_size=(64, 256))
    made[0] = (made[0][0], ["failed"])
    titles = [axis.get_title().splitlines()[0] for axis in drawn("sweep-model", *made).axes]
    assert titles == ["SINGLE (batch size 64)", "SINGLE (batch size 256)"]


def test_a_very_long_interval_does_not_flatten_the_figure_of_scaling():
    noisy = [(row, runs("ddp", (0.5, 1.5), count=2, world_size=2)) for row, _ in at_each("ddp", (2, 4))]
    analysis = analyse(report_of(SINGLE, *noisy))
    most = max(entry.standing.speed_up.value for entry in analysis.rows)
    assert max(entry.standing.speed_up.high or 0.0 for entry in analysis.rows) > 20 * most
    (axis,) = figures.FIGURES["scaling.png"](analysis).axes
    assert axis.get_ylim()[1] == pytest.approx(1.15 * plots.WIDE * most)


@pytest.mark.parametrize(
    "target, label, projected", [(None, "by time per image", True), (0.5, "by training time to 50%", False)]
)
def test_the_axis_of_scaling_has_one_quantity(target, label, projected):
    """A projection is about the time per image."""
    made = row_of("single"), *((replace(row, values={"nproc": 2}), own) for row, own in [row_of("ddp", 2)])
    (axis,) = drawn("scaling", *made, target_accuracy=target, project=["2", "4"], probe=LINK).axes
    assert axis.get_ylabel() == f"speed-up over the baseline,\n{label}"
    assert any("projected" in str(line.get_label()) for line in axis.get_lines()) == projected
    alone = drawn("scaling", row_of("single"), target_accuracy=target, project=["2", "4"], probe=LINK)
    assert bool(alone) == projected


def test_later_values_of_a_sweep_are_paler():
    analysis = analyse(report_of(*swept("single", num_workers=(0, 2, 4)), DDP))
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
    threads = {name: every[0].threads_per_process * every[0].world_size for name, every in results.items()}
    for entry, part in itertools.product(analysis.rows, ("data", "forward")):
        if entry.name in ratios:
            time = fmean(getattr(one.phases, part) for result in results[baseline] for one in result.epochs[1:])
            ideal = time * threads[baseline] / threads[entry.name]
            assert plots.ideal_phase(analysis, entry, part) == pytest.approx(ideal)


def test_a_curve_needs_a_row_with_several_epochs():
    rows = (configuration(), runs(epochs=1)), (configuration("ddp"), runs("ddp"))
    assert drawn("curves", *rows, target_accuracy=0.6)
    assert drawn("curves", rows[0]) is None


@pytest.mark.parametrize("share, shown", [(0.009, False), (0.011, True)])
def test_a_phase_of_less_than_a_hundredth_of_a_step_has_no_panel(share, shown):
    waits = 100 * share / (1 - share)
    rows = [(configuration(f"ddp-{data}"), runs(phases=(data, 0.0, 40.0, 60.0, 0.0))) for data in (0.0, waits)]
    rows.append((configuration(), runs(seconds=(0.01,), phases=(0.0, 0.0, 0.4, 0.6, 0.0))))
    assert ("data" in plots.phases_shown(analyse(report_of(*rows)))) == shown
