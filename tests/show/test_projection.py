"""The projection to more devices: the model of a step, and what is shown of it."""

import math
import re
from dataclasses import replace

import pytest

from common.files.probe import Bucket
from comparison.judge.analysis import analyse
from comparison.judge.projection import Link
from comparison.show.detail_tables import projection_table
from comparison.show.sentences import finding_sentence
from comparison.show.sweep_plots import draw_scaling
from comparison.show.terminal import terminal_text
from tests.reports import LINK, cells, configuration, markdown_of, report_of, row_of, runs

LOADER = LINK["loaders"][0]
IN_PLACE = {"num_workers": 0, "images_per_second": 5000.0, "cpu_seconds_per_image": 2e-4}
ON_GPUS = (configuration("ddp", num_workers=2, device="gpu"), runs("ddp"))


def projected(*rows, cores=2, **probed):
    """Analyse a comparison with a projection. probed: settings, and what the probe found in `loader` and `models`."""
    probe = {**LINK, "loaders": [probed.pop("loader", LOADER)], "models": probed.pop("models", LINK["models"])}
    report = report_of(*rows or [row_of("single"), row_of("ddp", 2)], project=[2, 4], probe=probe, **probed)
    return analyse(replace(report, environment={**report.environment, "cores": cores}))


def sentences(analysis):
    return " ".join(map(finding_sentence, (*analysis.projection.stops, *analysis.projection.assumptions)))


@pytest.mark.parametrize(
    "row, values, milliseconds",
    [
        (row_of("ddp", 2), {"cores": 8}, [40, 24 + 10, 15 + 15]),  # the devices
        (row_of("ddp", 2), {"cores": 8, "loader": {**LOADER, "images_per_second": 2000.0}}, [50, 50, 50]),
        (row_of("ddp", 2), {"cores": 2}, [40, (30 + 2 * 24) / 2 + 10, (30 + 4 * 15) / 2 + 2 * 15]),  # 2 per core
        (row_of("ddp", 2), {"cores": 8, "link_gbps": 80.0}, [40, 24 + 10 + 1, 15 + 15 + 1.5]),  # copying, then sending
        (  # a device with two threads takes two cores
            (configuration("ddp", num_workers=2, threads=2), runs("ddp")),
            {"cores": 2},
            [(30 + 80) / 2, (30 + 96) / 2 + 10, (30 + 120) / 2 + 2 * 15],
        ),
        (ON_GPUS, {"cores": 1}, [40, 34, 30]),  # GPUs do not compute on the cores
        # without workers, each process loads its part before the step
        (row_of("ddp", 1, 0), {"cores": 8, "loader": IN_PLACE}, [40 + 20, 24 + 10 + 10, 15 + 5 + 15]),
        (row_of("ddp", 1, 0), {"cores": 1, "loader": IN_PLACE}, [60, 2 * 24 + 20 + 2 * 10, 4 * 15 + 20 + 4 * 15]),
    ],
)
def test_a_step_takes_as_long_as_the_slowest_of_devices_loader_and_cores(row, values, milliseconds):
    points = projected(row, **values).projection.points  # no row of one device corrects the model
    assert [point.step.milliseconds for point in points] == pytest.approx(milliseconds)


def test_gpus_share_no_cores_and_a_given_link_speed_replaces_the_measured_one():
    analysis = projected(ON_GPUS, cores=1)
    assert cells(projection_table(analysis, "simple"))[1][:5] == ["2", "24.0", "10.00", "20.0", "–"]
    assert "(power, host cores)" in sentences(analysis)
    planned = configuration("single", device="gpu", threads=1)
    given = projected((planned, runs("single")), link_gbps=80.0, loader={**LOADER, "num_workers": 0})
    assert given.projection.points[1].step.all_reduce == pytest.approx(1)
    text = sentences(given)
    assert "at 80.00 Gbit/s (as given)" in text and not re.search("crosses a link|share a core", text)


def test_the_projection_starts_from_the_measured_time_of_one_device():
    analysis = projected(row_of("single", seconds=0.5), row_of("ddp", 2, seconds=0.5), cores=8)
    first, second, third = analysis.projection.points
    assert (first.epoch_seconds, first.speed_up, first.error) == (pytest.approx(0.5), 1, None)  # 10 steps of 40 ms
    assert second.epoch_seconds == pytest.approx(0.4) and second.speed_up == pytest.approx(50 / (1.25 * 24 + 10))
    assert (second.measured_seconds, second.error) == (pytest.approx(0.5), pytest.approx(-0.2))
    assert third.epoch_seconds == pytest.approx(0.3375) and third.measured_seconds is None  # 1.25 x 15 + 15 ms
    table = projection_table(analysis, "simple")
    assert table.count("projected") == 3 and [row[-1] for row in cells(table)] == ["–", "-20%", "–"]
    for text in (
        *("projected, not measured", "DDP with the batch divided", "10,000,000 bytes", "2 training ranks"),
        *("8.00 Gbit/s", "share 8 cores", "30.0 ms of a core for the loader's work on a batch (measured)"),
        "1.25 times",
    ):
        assert text in sentences(analysis)


def test_the_projection_is_compared_with_a_row_planned_like_the_first_one():
    half = configuration("ddp", name="ddp-precision=bf16", num_workers=2, precision="bf16")
    rows = row_of("single"), (half, runs("ddp", (0.3, 0.3, 0.3), count=2)), row_of("ddp", 2)
    assert projected(*rows, cores=8).projection.points[1].measured_seconds == pytest.approx(0.4)
    assert projected(*rows[:2], cores=8).projection.points[1].measured_seconds is None
    alone = projected(row_of("ddp", 2), cores=8)  # without a row of one device, the probe alone counts
    first, second, _ = alone.projection.points
    assert (first.epoch_seconds, second.epoch_seconds) == pytest.approx((0.4, 0.34)) and first.measured_seconds is None
    assert second.error == pytest.approx(0.34 / 0.4 - 1) and "No row shows what one device takes" in sentences(alone)


def test_there_is_no_projection_if_a_step_did_not_fit_into_memory():
    report = report_of(row_of("single"), project=[2, 4], probe={**LINK, "steps": LINK["steps"][1:]})
    assert analyse(report).projection.points == () and "did not fit into memory" in sentences(analyse(report))


@pytest.mark.parametrize("busy", ["single", "ddp"])
def test_nothing_is_projected_from_a_disturbed_comparison(busy, tmp_path):
    analysis = projected(foreign_cores={busy: 0.5})
    assert analysis.projection.points == analysis.projection.stops == () and draw_scaling(analysis) is None
    for text in (terminal_text(analysis), markdown_of(analysis, tmp_path)):
        assert sentences(analysis) in text and not re.search("devices are fastest|Speed-up, projected", text)


@pytest.mark.parametrize("seconds", [0.2, 2.0])
def test_the_figure_of_scaling_is_scaled_to_what_is_measured_and_projected(seconds):
    analysis = projected(row_of("single"), row_of("ddp", 2, seconds=seconds), cores=8)
    figure = draw_scaling(analysis)
    highest = [entry.standing.speed_up.high or 1.0 for entry in analysis.rows]
    highest += [point.speed_up for point in analysis.projection.points]
    assert figure.axes[0].get_ylim() == (0, pytest.approx(1.15 * max(highest)))  # the ideal line may leave the axes
    assert {"SINGLE, measured", "DDP, measured"} < {text.get_text() for text in figure.legends[0].get_texts()}
    assert (figure.get_suptitle().splitlines()[0] == "“DDP” is 2.00 times as fast as “SINGLE”") == (seconds == 0.2)


def test_ring_messages_grow_with_the_devices_and_tree_messages_with_each_doubling():
    link = Link(start=0.0, gbps=8.0, segments=1, at_once=1)
    for along in (link.ring, link.tree):
        assert along(1000, 1) == (0, 0) and along(10**9, 2) == (0, 1000)  # many send twice the bytes
        assert along(10**9, 10**6) == (0, pytest.approx(2000, rel=1e-5))
    for parts in (1, 2):
        link = Link(start=3.0, gbps=math.inf, segments=parts, at_once=1)
        assert [link.ring(1, devices)[0] for devices in (1, 2, 3, 64)] == [0, 6 * parts, 12 * parts, 378 * parts]
        assert [link.tree(1, devices)[0] for devices in (1, 2, 3, 4, 64)] == [0, 6, 12, 12, 36]


def test_ranks_wait_for_the_exchange_that_the_backward_pass_does_not_hide():
    nccl, gloo = (Link(start=0.0, gbps=8.0, segments=1, at_once=at_once) for at_once in (1, 2))  # 1 MB/ms
    parts = [Bucket(10**6, 0.3), Bucket(5 * 10**5, 0.0)]
    for link in (nccl, gloo):
        assert link.waited_for([Bucket(10**6, 0.0)], 10.0, 2) == 1
        assert link.waited_for([Bucket(10**6, 0.3)], 10.0, 2) == 0
        assert link.waited_for(parts, 10.0, 2) == 0.5  # the first has 3 ms
        assert link.waited_for(parts, 2.0, 2) == pytest.approx(0.9)  # 0.6 ms: the second waits for it
    nccl, gloo = (Link(start=1.0, gbps=8.0, segments=1, at_once=at_once) for at_once in (1, 2))
    assert nccl.waited_for(parts, 2.0, 2) == pytest.approx(0.4 + 2 + 0.5 + 2)
    assert gloo.waited_for(parts, 2.0, 2) == pytest.approx(0.4 + 0.5 + 2)  # its messages start in parallel
    assert gloo.waited_for([*parts, *parts[1:]], 2.0, 2) == pytest.approx(0.4 + 2 + 0.5 + 2)  # the third cannot
    assert gloo.waited_for(parts, 2.0, 1) == 0
    assert nccl.waited_for(parts, 2.0, 4, Link.tree) == pytest.approx(1.5 - 0.6 + 4 + 0.75 + 4)


def test_the_exchange_overlaps_with_the_backward_pass():
    """Exchanging 10 MB takes 10 ms: 2 ms of waiting, 4 ms to start 4 messages, and 4 ms for the bytes."""
    buckets = [{"size": 6_000_000, "left": 0.1}, {"size": 4_000_000, "left": 0.0}]
    model = {**LINK["models"][0], "short_milliseconds": 4.0, "long_milliseconds": 8.0, "buckets": buckets}

    def steps(**settings):
        analysis = projected(row_of("single"), cores=8, models=[model], **settings)
        return [point.step.all_reduce for point in analysis.projection.points], sentences(analysis)

    # the first bucket starts before the end of the backward pass, by 2.4 ms for 2 devices and 1.5 ms for 4
    waited, text = steps()
    assert waited == pytest.approx([0, 2 + 1.6 + 4, 2 + 2.1 + 2.4 + 12])
    for words in (
        *("at 20.00 Gbit/s", "ranks wait 2.00 ms", "4 (N-1) messages", "each takes 1.00 ms", "first 6,000,000 bytes"),
        *("10% of a step", "ring all-reduce, 2 devices with 50 images each are fastest", "tree all-reduce, 4 devices"),
    ):
        assert words in text, words
    given, text = steps(link_gbps=20.0, link_ms=1.0)  # twice as long: copied, then sent, each at 20 Gbit/s
    assert given == pytest.approx([0, 2 + 2.4 + 3.2 + 8, 2 + 10.5 + 24]) and "each takes 2.00 ms" in text
    assert "a link of 20.00 Gbit/s (given)" in text and "Where k ranks share a core" in text
    assert steps(link_gbps=0.8)[1].count("adding devices never helps") == 2


@pytest.mark.parametrize("cores, times", [(None, 1), (8, 1), (4, 2), (2, 4)])
def test_the_exchange_is_slower_where_ranks_share_a_core_but_not_on_a_given_link(cores, times):
    link = Link(start=1.0, gbps=8.0, segments=1, at_once=1, cores=cores, delay=3.0, wire=4.0)
    assert (link.message(8), link.byte(8)) == (times + 3, pytest.approx(times * 1e-6 + 2e-6))
    assert (link.message(2), link.byte(2)) == (1 + 3, pytest.approx(3e-6))
