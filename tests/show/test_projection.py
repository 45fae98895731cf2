"""The projection to more devices: the model of a step, and what is shown of it."""

import math
import re
from dataclasses import replace

import pytest
from matplotlib.text import Text

from common.files.probe import Bucket
from comparison.cluster import Cluster, Link, expected_maximum
from comparison.judge.analysis import analyse
from comparison.judge.projection import GLOO_COSTS
from comparison.show.detail_tables import projection_table
from comparison.show.sentences import finding_sentence
from comparison.show.sweep_plots import draw_scaling
from comparison.show.terminal import terminal_text
from comparison.show.verdict import answers
from tests.reports import LINK, cells, configuration, markdown_of, report_of, row_of, runs

LOADER = LINK["loaders"][0]
IN_PLACE = {"num_workers": 0, "images_per_second": 5000.0, "cpu_seconds_per_image": 2e-4}
NETWORK = {"project": ["2x1", "4x1"], "link_gbps": 80.0}
ON_GPUS = (configuration("ddp", num_workers=2, device="gpu"), runs("ddp"))


def projected(*rows, cores=2, **probed):
    """Analyse a comparison with a projection. probed: settings, and what the probe found in `loader` and `models`."""
    probe = {**LINK, "loaders": [probed.pop("loader", LOADER)], "models": probed.pop("models", LINK["models"])}
    rows, settings = rows or [row_of("single"), row_of("ddp", 2)], {"project": ["2", "4"], **probed}
    report = report_of(*rows, probe=probe, **settings)
    return analyse(replace(report, environment={**report.environment, "cores": cores}))


def sentences(analysis):
    return " ".join(map(finding_sentence, (*analysis.projection.stops, *analysis.projection.assumptions)))


def test_without_a_measured_link_nothing_is_projected():
    nothing, measured = projected(models=[{**LINK["models"][0], "link_gbps": None}]), projected(project=["2"])
    assert nothing.projection.points == () and any("Not computed" in text for text in answers(nothing))
    assert measured.projection.points[1].measured_seconds and not any("project" in text for text in answers(measured))


def test_one_gpu_suffices_to_project_machines_with_one_each():
    unknown, network = [{**LINK["models"][0], "link_gbps": None}], {"link_gbps": 80.0, "link_ms": 1.0}
    alone, two = projected(ON_GPUS, models=unknown, project=["2x1"], **network).projection.points
    assert alone.step.exchange == 0 and two.step.exchange == pytest.approx(1 + 2)  # 10 MB at 80 Gbit/s, two messages
    assert projected(ON_GPUS, models=unknown, project=["2x2"], **network).projection.points == ()


def test_the_order_of_rows_does_not_matter():
    alone, ddp = row_of("single"), row_of("ddp", 2)
    all_cores = configuration("single-all-cores", num_workers=2, threads=2), runs("single-all-cores")
    first, last = (projected(*rows).projection.points for rows in ((all_cores, alone, ddp), (alone, ddp, all_cores)))
    assert first == last and first[1].measured_seconds


@pytest.mark.parametrize(
    "row, values, milliseconds",
    [
        (row_of("ddp", 2), {"cores": 8}, [40, 24 + 10, 15 + 15]),  # the devices
        (row_of("ddp", 2), {"cores": 8, "loader": {**LOADER, "images_per_second": 2000.0}}, [50, 50, 50]),
        (row_of("ddp", 2), {"cores": 2}, [40, (30 + 2 * 24) / 2 + 10, (30 + 4 * 15) / 2 + 2 * 15]),  # 2 per core
        (row_of("ddp", 2), {"cores": 8, **NETWORK}, [40, 24 + 10 + 1, 15 + 15 + 1.5]),  # copying, then sending
        (row_of("ddp", 2), {"cores": 2, **NETWORK}, [40, 24 + 10 + 1, 15 + 15 + 1.5]),  # each machine has its own cores
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


def test_gpus_share_no_cores_and_copy_nothing_before_sending():
    analysis = projected(ON_GPUS, cores=1)
    assert cells(projection_table(analysis, "simple"))[1][:5] == ["2", "24.0", "10.00", "20.0", "–"]
    assert "(power, host cores)" in sentences(analysis)
    planned = configuration("single", device="gpu", threads=1)
    given = projected((planned, runs("single")), **NETWORK, loader={**LOADER, "num_workers": 0})
    assert given.projection.points[1].step.exchange == pytest.approx(1)
    text = sentences(given)
    assert "80.00 Gbit/s" in terminal_text(given, verbose=True)
    assert "network of 80.00 Gbit/s with 0.00 ms" in text and "share a core" not in text


def test_the_projection_starts_from_the_measured_time_of_one_device():
    analysis = projected(row_of("single", seconds=0.5), row_of("ddp", 2, seconds=0.5), cores=8)
    first, second, third = analysis.projection.points
    assert (first.epoch_seconds, first.speed_up, first.error) == (pytest.approx(0.5), 1, None)  # 10 steps of 40 ms
    assert second.epoch_seconds == pytest.approx(0.4) and second.speed_up == pytest.approx(50 / (1.25 * 24 + 10))
    assert (second.measured_seconds, second.error) == (pytest.approx(0.5), pytest.approx(-0.2))
    assert third.epoch_seconds == pytest.approx(0.3375) and third.measured_seconds is None  # 1.25 x 15 + 15 ms
    table = projection_table(analysis, "simple")
    assert table.count("projected") == 2 and [row[-1] for row in cells(table)] == ["–", "-20%", "–"]
    for text in (
        *("projected, not measured", "DDP with the batch divided", "10,000,000 bytes", "2 training ranks"),
        *("8.00 Gbit/s", "share 8 cores", "30.0 ms of a core for the loader's work on a batch (measured)"),
        *("1.25 times", "4 devices with 25 images each are fastest: the largest number"),
    ):
        assert text in sentences(analysis)


@pytest.mark.parametrize(
    "gbps, most", [(0.1, "2 devices with 50 images each"), (80.0, "4 devices with 25 images each")]
)
def test_further_machines_are_asked_for_as_the_largest_cluster_has_them(gbps, most):
    analysis = projected(row_of("single"), row_of("ddp", 2), cores=8, project=["2", "2x2"], link_gbps=gbps)
    assert f"{most} are fastest" in sentences(analysis)


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
    report = report_of(row_of("single"), project=["2", "4"], probe={**LINK, "steps": LINK["steps"][1:]})
    assert analyse(report).projection.points == () and "did not fit into memory" in sentences(analyse(report))
    for scaling, points in (("strong", 0), ("weak", 3)):  # four devices, each with a quarter, which was not measured
        probe = {**LINK, "steps": LINK["steps"][:2]}
        report = report_of(row_of("single"), project=["2", "4"], probe=probe, scaling=scaling)
        assert len(analyse(report).projection.points) == points


@pytest.mark.parametrize("busy", ["single", "ddp"])
def test_nothing_is_projected_from_a_disturbed_comparison(busy, tmp_path):
    analysis = projected(foreign_cores={busy: 0.5})
    assert analysis.projection.points == analysis.projection.stops == () and draw_scaling(analysis) is None
    for text in (terminal_text(analysis), markdown_of(analysis, tmp_path)):
        assert sentences(analysis) in text and not re.search("devices are fastest|Speed-up, projected", text)


def test_the_figure_of_scaling_does_not_deny_the_gain_of_a_row_that_it_does_not_draw():
    loading = {"threads_per_process": 2, "workers_per_process": 2}
    alone = configuration("single-all-cores", threads=2), runs(seconds=(0.2, 0.202, 0.198), **loading)
    analysis = projected(row_of("single"), alone, row_of("ddp", 2, seconds=3.0), cores=8, project=["2"])
    texts = [text.get_text() for text in draw_scaling(analysis).findobj(Text)]
    assert any(text.startswith("“SINGLE-ALL-CORES” is 2.00 times as fast") for text in texts), texts


@pytest.mark.parametrize("seconds", [0.2, 2.0])
def test_the_figure_of_scaling_is_scaled_to_what_is_measured_and_projected(seconds):
    rows = row_of("single"), row_of("ddp", 2, seconds=seconds)
    analysis = projected(*rows, cores=8, project=["2", "2x2"], link_gbps=80.0)
    figure, points = draw_scaling(analysis), analysis.projection.points
    lines = {line.get_linestyle(): line for line in figure.axes[0].get_lines() if "projected" in line.get_label()}
    one_and_two = zip(("-", "--"), (points[:2], points[::2]), figure.axes[0].collections[-2:], strict=True)  # machines
    for style, some, range_of in one_and_two:
        ends = {(point.cluster.total, end) for point in some for end in (point.low, point.high)}
        assert {*map(tuple, range_of.get_paths()[0].vertices)} == ends
        assert [*lines[style].get_xdata()] == [point.cluster.total for point in some]
        assert [*lines[style].get_ydata()] == [point.speed_up for point in some]
    assert figure.axes[0].get_xlim() == (0.8, 4.2)
    highest = [entry.standing.speed_up.high or 1.0 for entry in analysis.rows]
    highest += [point.high for point in analysis.projection.points]
    assert figure.axes[0].get_ylim() == (0, pytest.approx(1.15 * max(highest)))  # the ideal line may leave the axes
    assert {"SINGLE, measured", "DDP, measured"} < {text.get_text() for text in figure.legends[0].get_texts()}
    assert (figure.get_suptitle().splitlines()[0] == "“DDP” is 2.00 times as fast as “SINGLE”") == (seconds == 0.2)


def test_ring_messages_grow_with_the_devices_and_tree_messages_with_each_doubling_of_machines():
    gloo = Link(start=3.0, gbps=8.0, segments=2, at_once=2, cores=64)
    for devices, messages in ((1, 0), (2, 2), (3, 4), (64, 126)):
        assert gloo.all_reduce(0, Cluster(1, devices)) == (2 * 3.0 * messages, 0)
        assert gloo.all_reduce(10**6, Cluster(1, devices))[1] == pytest.approx(messages / devices)  # 1 MB/ms
    nccl = Link(start=1.0, gbps=math.inf, segments=1, at_once=1, delay=10.0)
    for machines, doublings in ((2, 1), (4, 2), (5, 3), (64, 6)):
        ring = 2 * (4 * machines - 1) * (1.0 + 10.0 / 4)  # every fourth message crosses the network
        trees = 2 * (3 + doublings) * 1.0 + 2 * doublings * 10.0
        assert nccl.all_reduce(0, Cluster(machines, 4)) == (pytest.approx(min(ring, trees)), 0)
    assert nccl.all_reduce(0, Cluster(1, 4)) == (6.0, 0)


def test_the_slower_of_the_links_inside_and_between_machines_limits_gpus():
    cases = (Cluster(1, 8), 2 * 7 / 8 / 10), (Cluster(4, 1), 2 * 3 / 4), (Cluster(2, 8), 1.0)  # trees on two machines
    for cluster, milliseconds in cases:
        link = Link(start=0.0, gbps=80.0, segments=1, at_once=1, wire=8.0)
        assert link.all_reduce(10**6, cluster) == (0, pytest.approx(milliseconds))
    slow_inside = Link(start=0.0, gbps=8.0, segments=1, at_once=1, wire=80.0)
    assert slow_inside.all_reduce(10**6, Cluster(2, 8)) == (0, pytest.approx(2 * 15 / 16))


def test_ranks_wait_for_the_exchange_that_the_backward_pass_does_not_hide():
    two, gloo = Cluster(1, 2), Link(start=0.0, gbps=8.0, segments=1, at_once=2, cores=8)  # 1 MB/ms
    nccl = replace(gloo, at_once=1, cores=None)
    parts = [Bucket(10**6, 0.3), Bucket(5 * 10**5, 0.0)]
    for link in (nccl, gloo):
        assert link.exposed([Bucket(10**6, 0.0)], 10.0, two) == 1
        assert link.exposed([Bucket(10**6, 0.3)], 10.0, two) == 0
        assert link.exposed(parts, 10.0, two) == 0.5  # the first has 3 ms
        assert link.exposed(parts, 2.0, two) == pytest.approx(0.9)  # 0.6 ms: the second waits for it
    nccl, gloo = replace(nccl, start=1.0), replace(gloo, start=1.0)
    assert nccl.exposed(parts, 2.0, two) == pytest.approx(0.4 + 2 + 0.5 + 2)
    assert gloo.exposed(parts, 2.0, two) == pytest.approx(0.4 + 0.5 + 2)  # its messages start in parallel
    assert gloo.exposed([*parts, *parts[1:]], 2.0, two) == pytest.approx(0.4 + 2 + 0.5 + 2)  # the third cannot


def test_the_wait_for_the_slowest_rank_grows_with_the_ranks():
    exact = {2: 0.5642, 4: 1.0294, 8: 1.4236, 64: 2.3437, 512: 3.0416}  # H. L. Harter, Biometrika 48, 1961
    for count, value in exact.items():
        assert expected_maximum(count) == pytest.approx(value, rel=0.045)
    assert expected_maximum(1) == 0


def test_the_exchange_overlaps_with_the_backward_pass():
    """Exchanging 10 MB takes 10 ms: 2 ms of waiting, 4 ms to start 4 messages, and 4 ms for the bytes."""
    buckets = [{"size": 6_000_000, "left": 0.1}, {"size": 4_000_000, "left": 0.0}]
    model = {**LINK["models"][0], "short_milliseconds": 4.0, "long_milliseconds": 8.0, "buckets": buckets}

    def steps(**settings):
        analysis = projected(row_of("single"), cores=8, models=[model], **settings)
        return [point.step.exchange for point in analysis.projection.points], sentences(analysis)

    # the first bucket starts before the end of the backward pass, by 2.4 ms for 2 devices and 1.5 ms for 4
    waited, text = steps()
    four = 2 * expected_maximum(4) / expected_maximum(2)
    assert waited == pytest.approx([0, 2 + 1.6 + 4, four + 2.1 + 2.4 + 12])
    for words in (
        *("at 20.00 Gbit/s", "2.00 ms with 2, as measured", "4 (N-1) messages", "each takes 1.00 ms"),
        *("first 6,000,000 bytes", "10% of a step", "2 devices with 50 images each are fastest: with more"),
    ):
        assert words in text, words
    network = {"project": ["2x1", "4x1"], "link_ms": 1.0}
    given, text = steps(**network, link_gbps=20.0)  # twice as long: copied, then sent, each at 20 Gbit/s
    assert given == pytest.approx([0, 2 + 2.4 + 3.2 + 8, four + 10.5 + 24])
    assert "network of 20.00 Gbit/s with 1.00 ms" in text and "Where k ranks share a core" in text
    assert "Adding devices never helps" in steps(**network, link_gbps=0.8)[1]


def test_the_exchange_of_as_many_gpus_as_were_measured_takes_as_long_as_measured():
    model = {**LINK["models"][0], "short_milliseconds": 4.0}
    report = projected(ON_GPUS, models=[model], project=["4"]).report
    report = replace(report, environment={**report.environment, "gpus": ["H200"] * 4})
    assert analyse(report).projection.points[-1].step.exchange == pytest.approx(15)  # 3/4 of 10 MB, twice, at 8 Gbit/s


def test_the_range_has_less_and_more_of_the_exchange():
    points = projected(row_of("single"), row_of("ddp", 2), cores=8).projection.points
    alone, two = (point.step for point in points[:2])
    assert (points[0].low, points[0].speed_up, points[0].high) == (1, 1, 1)
    for cost, speed_up in zip(GLOO_COSTS[:2], (points[1].high, points[1].low), strict=True):
        assert speed_up == pytest.approx(alone.milliseconds / (two.compute + cost * two.exchange))


def test_with_weak_scaling_the_batch_grows_with_the_devices():
    points = projected(row_of("single"), cores=8, scaling="weak").projection.points
    assert [point.step.compute for point in points] == pytest.approx([40, 40, 40])
    assert [point.step.loading for point in points] == pytest.approx([20, 40, 80])  # the workers of one machine
    assert points[1].speed_up == pytest.approx(2 * 40 / (40 + 10)) and points[2].speed_up == pytest.approx(4 * 40 / 80)
    assert points[2].epoch_seconds == pytest.approx(3 * 0.08)  # 1,000 images, 400 in a step


@pytest.mark.parametrize("cores, times", [(8, 1), (4, 2), (2, 4)])
def test_the_exchange_is_slower_where_ranks_share_a_core_but_not_on_the_network(cores, times):
    link = Link(start=1.0, gbps=8.0, segments=1, at_once=1, cores=cores)
    assert link.all_reduce(8, Cluster(1, 8)) == (14 * times, pytest.approx(14 * times * 1e-6))
    between = replace(link, delay=3.0, wire=4.0).all_reduce(16, Cluster(2, 8))
    assert between == (pytest.approx(30 * (times + 3 / 8)), pytest.approx(30 * (times * 1e-6 + 2e-6)))
