"""Tips: which options are launched, how often, what they claim, and how they are shown."""

import math
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from common.errors import MACHINE
from comparison.judge.analysis import analyse, best_tip, find_tips
from comparison.judge.statistics import Ratio
from comparison.outcomes import Outcome
from comparison.plan import tips as options
from comparison.plan.tips import options_for
from comparison.results_file import read_results, write_results
from comparison.run import tips as tips_module
from comparison.run.observed import with_batch
from comparison.run.tips import run_tips
from comparison.show.advice import option_advice
from comparison.show.detail_tables import tip_rows
from comparison.show.report import TIPS, present, write_csv
from tests.fixtures import PROJECT, small
from tests.reports import configuration, each_epoch, make_result, report_of, runs

SPEEDS = {"bf16": 1.6, "huge pages": 1.25, "all cores": 0.8}  # times as fast as without; several multiply
NOISE = (1.0, 1.004, 0.996, 1.002)
SINGLE, SLOW = configuration(threads=2), (configuration("ddp"), runs("ddp", (9.0, 9.1, 8.9), count=2))


def compared(wall=90.0, **settings):
    """Return a comparison that recommends one device; each of its six runs took `wall` seconds."""
    report = report_of((SINGLE, runs(startup_seconds=2.5)), SLOW, loader="resident", **settings)
    return replace(report, outcomes=tuple(replace(outcome, wall_seconds=wall) for outcome in report.outcomes))


@pytest.fixture
def launch(monkeypatch, tmp_path):
    """launch(report): run tips with fake launches of `seconds` each. Return the tips, and the options of each block.

    broken: by option, the status and reason of a launch that fails. trained: the status of the complete training.
    """

    def launch(report, seconds=2.0, speeds=SPEEDS, broken=(), foreign=0.0, trained="ok"):
        blocks, clock = [], {"now": 0.0}

        def outcome(row, block):
            names = options.options_of(row)
            clock["now"] += seconds
            failed = dict(broken).get("+".join(names))
            speed = math.prod(speeds[name] for name in names)
            result = None if failed else make_result(seconds=[2.0 / speed * NOISE[(block + len(names)) % 4]] * 4)
            status, why = failed or ("ok", "")
            return Outcome(
                row.name, block, status, why, "typed", "log", MACHINE if failed else 0, seconds, foreign, result
            )

        def take_turns(launched, seed):
            blocks.append([options.options_of(run.configuration) for run in launched])
            yield from (outcome(run.configuration, len(blocks)) for run in launched)

        def run_once(row, block, seed, directory, timeout):
            blocks.append([("trained", *options.options_of(row))])
            ended = replace(outcome(replace(row, role="tip"), 1), configuration=row.name, status=trained)
            return ended if trained == "ok" else replace(ended, result=None)

        monkeypatch.setattr("comparison.show.figures.draw_all", lambda *_: [])
        monkeypatch.setattr(tips_module, "options_for", lambda *_: ["bf16", "all cores", "huge pages"])
        monkeypatch.setattr(tips_module.time, "monotonic", lambda: clock["now"])
        monkeypatch.setattr(tips_module, "why_not_in_turns", lambda *_: "")
        monkeypatch.setattr(tips_module, "take_turns", take_turns)
        monkeypatch.setattr(tips_module, "ScriptRun", lambda row, *_: SimpleNamespace(configuration=row))
        monkeypatch.setattr(tips_module, "run_once", run_once)
        return run_tips(analyse(report), tmp_path / TIPS), blocks

    return launch


PLAIN, BF16, PAGES, CORES, BOTH = (), ("bf16",), ("huge pages",), ("all cores",), ("bf16", "huge pages")


def test_helpful_options_are_launched_again_and_together_until_decided(launch, tmp_path):
    tried, blocks = launch(compared())
    again = [PLAIN, BOTH, BF16, PAGES]
    assert blocks == [[PLAIN, BF16, CORES, PAGES], again, again]
    tips = {tip.options: tip for tip in find_tips(read_results(tmp_path / TIPS / "results.json"))}
    assert tips[BF16].ratio.value == pytest.approx(1.6, rel=0.02) and tips[PAGES].ratio.value < 1.3
    assert tips[BOTH].ratio.value == pytest.approx(2.0, rel=0.02) and tips[BOTH].ratio.low > 1.9
    assert tips[CORES].ratio.low is None and not tips[CORES].proved
    assert best_tip(tuple(tips.values())).options == BOTH
    useless = replace(tips[PAGES], ratio=Ratio(1.02, 0.92, 1.13))  # what does not help alone is not recommended
    assert best_tip(tuple({**tips, PAGES: useless}.values())).options == BF16
    assert find_tips(tried) == tuple(tips.values())
    commands, own = {options.options_of(row): row.command for row in tried.plan}, SINGLE.command
    assert commands[PLAIN] == own and commands[BF16] == (*own, "--precision", "bf16")
    assert commands[BOTH] == ("env", "GLIBC_TUNABLES=glibc.malloc.hugetlb=1", *own, "--precision", "bf16")


def test_tips_take_a_third_of_the_time_and_at_most_a_minute(launch):
    tried, blocks = launch(compared(wall=10.0), seconds=4.9)  # 20 s, half of it for the first block
    assert blocks == [[PLAIN, BF16]] * 2
    skipped = {options.options_of(row)[0]: row.skip for row in tried.plan if row.skip}
    assert skipped == dict.fromkeys(("all cores", "huge pages"), "no time was left for it")
    assert launch(compared(wall=2.0)) == (None, [])
    tried, blocks = launch(compared(wall=1000.0), seconds=6.0)  # of 60 s
    assert [len(block) for block in blocks] == [4, 4, 2] and blocks[-1] == [PLAIN, BOTH]


def test_no_launch_begins_after_the_time_is_over(launch):
    tried, _ = launch(compared())
    late = tips_module.time.monotonic() - 3.0  # of launches of 2 s
    assert tips_module._next_rows(replace(tried, outcomes=tried.outcomes[:4], order=tried.order[:4]), late) == []


def test_options_launched_together_are_the_same_row_in_every_block(launch):
    speeds = {**SPEEDS, "all cores": 1.27}  # in some blocks more than huge pages bring, in others less
    tried, _ = launch(compared(), speeds=speeds)
    together = {options.options_of(row) for row in tried.plan if len(options.options_of(row)) > 2}
    assert together == {("bf16", "all cores", "huge pages")}


def test_every_process_gets_its_share_of_all_cores():
    row = configuration("ddp", per_device_batch_size=50)  # two processes
    assert options.with_options(row, ("all cores",), 4.0).command[-2:] == ("--threads", "2")
    assert options.with_options(configuration(), ("all cores",), 4.0).command[-2:] == ("--threads", "4")


def test_failed_and_useless_options_are_not_launched_again(launch):
    refused = {"bf16": ("failed", "bf16 is slower here")}
    tried, blocks = launch(compared(), speeds={**SPEEDS, "huge pages": 1.02}, broken=refused)
    assert len(blocks) == 1 and best_tip(find_tips(tried)) is None
    shown = {row["Option"]: row for row in tip_rows(replace(analyse(compared()), tips=find_tips(tried)))}
    assert shown["bf16"]["Result"] == "refused: bf16 is slower here" and shown["bf16"]["Times as fast [95%]"] is None
    assert shown["huge pages"]["Result"] == "no gain in its first launch"
    tried, _ = launch(compared(), broken={"": ("failed", "no kernel")})  # nothing to compare with
    assert not any(tip.ratio for tip in find_tips(tried))


def test_disturbed_tips_claim_nothing(launch):
    tried, _ = launch(compared(), foreign=0.9)
    ratios = [tip.ratio for tip in find_tips(tried) if tip.ratio]
    assert len(ratios) == 3 and all(ratio.disturbed for ratio in ratios) and best_tip(find_tips(tried)) is None


def test_options_that_may_change_the_accuracy_are_trained_to_the_end(launch):
    _, blocks = launch(compared(wall=20.0), seconds=1.0)
    assert blocks[-1] == [("trained", *BOTH)]
    _, blocks = launch(compared(wall=50.0), seconds=1.0)  # longer than the time left
    assert blocks[-1] != [("trained", *BOTH)]
    _, blocks = launch(compared(wall=20.0), seconds=1.0, speeds={**SPEEDS, "bf16": 1.0})
    assert blocks[-1] == [PLAIN, PAGES]  # the same weights


def test_an_option_whose_training_fails_is_not_advised(launch):
    tried, _ = launch(compared(wall=20.0), seconds=1.0, trained="diverged")
    tips = find_tips(tried)
    assert best_tip(tips).options == BF16 and {tip.options: tip.trouble for tip in tips}[BOTH] == "diverged"
    shown = {row["Option"]: row for row in tip_rows(replace(analyse(compared()), tips=tips))}
    assert shown["bf16 + huge pages"]["Result"] == "its training: diverged"


@pytest.mark.parametrize(
    "wall, speeds, words",
    [
        (90.0, SPEEDS, "its accuracy was not checked"),
        (20.0, SPEEDS, "trained to 90.0% here, without to 80.0%"),
        (90.0, {**SPEEDS, "bf16": 1.0}, "its accuracy is not changed"),
        (90.0, {**SPEEDS, "bf16": 1.0, "all cores": 1.4}, "only rounding differs"),
        (90.0, {**SPEEDS, "all cores": 1.4}, "bf16, all cores and huge pages, 2.8"),
    ],
)
def test_the_screen_shows_tips_in_one_line(launch, tmp_path, capsys, wall, speeds, words):
    report = compared(wall)
    launch(report, seconds=1.0, speeds=speeds)
    write_results(report, tmp_path)
    present(tmp_path)
    said = " ".join(capsys.readouterr().out.split())
    assert "What else this machine could do: " in said and words in said and "times as fast as “SINGLE”" in said
    assert ("bf16 and huge pages, 2.0" in said) == (speeds is SPEEDS)
    page, markdown = ((tmp_path / name).read_text() for name in ("report.html", "report.md"))
    assert "GLIBC_TUNABLES=glibc.malloc.hugetlb=1" in page and "| huge pages" in markdown
    write_csv(analyse(report), tmp_path / "without.csv")  # no other table changes
    assert (tmp_path / "results.csv").read_text() == (tmp_path / "without.csv").read_text()
    assert option_advice(analyse(report)) == []


def test_options_for_a_row(monkeypatch):
    monkeypatch.setattr(options, "_can_ask_for_huge_pages", lambda: True)

    def of(method="single", loader="resident", dataset="mnist", cores=2, **planned):
        report = report_of((configuration(method, **planned), runs(method)), loader=loader, dataset=dataset)
        report = replace(report, environment={**report.environment, "cores": cores})
        return set(options_for(report.plan[0], report))

    assert of(threads=2) == {"bf16", "huge pages"}
    assert of(threads=1) == {"bf16", "huge pages", "all cores"}
    both = report_of((SINGLE, runs()), (configuration("single-all-cores", threads=4), runs()), loader="resident")
    assert "all cores" not in options_for(SINGLE, replace(both, environment={**both.environment, "cores": 4}))
    for cores in (2, 3):  # a device of three cores and two devices has one already
        assert of("ddp", per_device_batch_size=50, cores=cores) == {"bf16", "huge pages"}
    assert "all cores" in of("ddp", per_device_batch_size=50, cores=4) and "compile" not in of("fsdp", device="gpu")
    assert of(threads=2, precision="bf16") == {"huge pages"} and of(device="gpu", compile=True) == {"bf16", "tf32"}
    assert of(threads=2, loader="workers") - of(threads=2) == {"resident loader"}
    assert "resident loader" not in of(loader="workers", dataset="folder:images")
    assert of(device="gpu") == {"bf16", "tf32", "cuda graph", "compile"}
    assert of("ddp", device="gpu", per_device_batch_size=50) == {"bf16", "tf32", "compile"}
    assert options.that_go_together(["tf32", "compile", "bf16", "cuda graph"]) == ("tf32", "compile")


@pytest.mark.parametrize(
    "linux, typed, asked",
    [
        ("always [madvise] never", {}, True),
        ("[always] never", {}, False),
        ("[madvise]", {"GLIBC_TUNABLES": "x"}, False),
    ],
)
def test_huge_pages_are_an_option_if_linux_gives_them_on_request(linux, typed, asked, monkeypatch, tmp_path):
    (tmp_path / "enabled").write_text(linux)
    monkeypatch.setattr(options, "HUGE_PAGES", tmp_path / "enabled")
    monkeypatch.setattr(options.os, "environ", typed)
    assert options._can_ask_for_huge_pages() == asked


@pytest.mark.slow
@pytest.mark.process
def test_a_training_script_is_observed_in_turns(data_root, tmp_path):
    typed = small("data_parallel_train.py", data_root, "--loader", "resident", "--threads", "1", "--device", "cpu")
    typed += ["--target-accuracy", "0.5"]
    row = replace(SINGLE, command=(sys.executable, str(PROJECT / typed[0]), *typed[1:]))
    tried = replace(report_of((row, ())), order=())
    rows = [row, options.with_options(row, PAGES, 1)]
    tried = tips_module.run_block(tried, rows, tmp_path / TIPS, 60.0, str(tmp_path))
    assert {outcome.configuration: outcome.status for outcome in tried.outcomes} == {row.name: "ok" for row in rows}
    for outcome in tried.outcomes:
        assert [epoch.samples / epoch.steps for epoch in outcome.result.epochs] == [48.0] * 4
        assert outcome.result.startup_seconds > 0.1
    (tip,) = find_tips(tried)
    assert tip.options == PAGES and tip.ratio.value > 0


def test_the_plan_supplies_the_batch_of_a_compiled_network():
    unseen = each_epoch(make_result(global_batch_size=0), samples=0)
    known = with_batch(unseen, SINGLE.planned.batch_size)
    assert known.global_batch_size == known.per_device_batch_size == 100
    assert [epoch.samples for epoch in known.epochs] == [1000] * 3
