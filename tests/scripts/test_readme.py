"""Every measured number in the READMEs and docs/ comes from a JSON file committed with the figures."""

import importlib
import json
import re
import shlex
import statistics
import subprocess
from functools import cache
from pathlib import Path

import pytest

import compare_parallel
from common.files.results import read_result
from comparison.judge.analysis import analyse
from comparison.results_file import read_results
from tests.fixtures import PROJECT
from tests.reports import COMPARISONS, ON_CIFAR10

README, CHINESE = PROJECT / "README.md", PROJECT / "README.zh-CN.md"
FIGURES = PROJECT / "figures"
PAGES = (README, *sorted((PROJECT / "docs").glob("*.md")))
ACCURACY_RUNS = ("mnist-lenet-single.json", "mnist-lenet-ddp-2.json", "cifar10-vgg-single.json")


def text_of(*pages) -> str:
    """The text of several pages, with links relative to the project's root."""
    return "\n".join(page.read_text(encoding="utf-8").replace("](../", "](") for page in pages)


def prose_of(*pages) -> str:
    """text_of() with all white space as single spaces."""
    return " ".join(text_of(*pages).split())


def load_json(*path):
    """The contents of a JSON file in figures/."""
    return json.loads(FIGURES.joinpath(*path).read_text())


@pytest.fixture
def benchmark(monkeypatch):
    """benchmark(name): import a module of benchmarks/."""
    monkeypatch.syspath_prepend(PROJECT / "benchmarks")
    return importlib.import_module


@cache
def analysis_of(name):
    return analyse(read_results(FIGURES / name / "results.json"))


@pytest.mark.parametrize("name", [*COMPARISONS, *ON_CIFAR10])
def test_comparisons_are_complete_and_their_commands_documented(name):
    report = analysis_of(name).report
    assert not report.failed
    assert f"](figures/{name}/report.md)" in text_of(*PAGES)
    assert name == "compare-synthetic" or f"`{report.command.partition(' --output-dir')[0]}`" in text_of(*PAGES)


def test_projections_are_close_to_the_measurements():
    points = [(name, point) for name in COMPARISONS for point in analysis_of(name).projection.points]
    errors = {(name, str(point.cluster)): point.error for name, point in points if point.error is not None}
    assert errors and all(abs(error) <= 0.15 for error in errors.values()), errors


def test_milliseconds_in_the_findings_come_from_a_report():
    reports = text_of(*FIGURES.rglob("report.md"))
    numbers = re.findall(r"[\d.]+ ± [\d.]+ ms", prose_of(PROJECT / "docs" / "findings.md"))
    assert len(numbers) >= 5 and not [number for number in numbers if number not in reports]
    idle = r"two devices idles? (\d+)% .*? ideally (\d+)%"
    shares = zip(*re.findall(idle, (FIGURES / "micro-batches" / "report.md").read_text()), strict=True)
    computed, ideal = (re.sub(", ([^,]*)$", r" and \1", ", ".join(share)) for share in shares)
    assert f"{computed}% of the forward pass, ideally {ideal}%" in prose_of(*PAGES)


def test_numbers_in_the_surprising_findings():
    ladder, workers, resident = map(analysis_of, ("ladder-mnist", "worker-study", "resident-mnist"))

    def named(analysis, name):
        """The seconds per epoch of a row, and its speed-up."""
        entry = next(entry for entry in analysis.rows if entry.row.configuration.name == name)
        return entry.summary.epoch_seconds, entry.standing.speed_up

    (_, cores), (_, ddp_ranks) = (named(resident, name) for name in ("single-all-cores", "ddp"))
    (_, laddered), (ddp, by_ranks) = (named(ladder, name) for name in ("single-all-cores", "ddp"))
    without, steps = named(workers, "single-num_workers=0")[0], ladder.report.probe.step_milliseconds("lenet")
    text, chinese = prose_of(*PAGES), text_of(CHINESE)
    for sentence in (
        f"one process on all cores is {cores} times as fast as one device, and DDP with two ranks {ddp_ranks} times",
        f"neither is proved to gain anything: {laddered} and {by_ranks} (the ladder)",
        f"({without:.2f} s per epoch in the worker study), the same DDP ({ddp:.2f} s) would look "
        f"{without / ddp:.2f} times as fast",
        f"takes {steps[128]:.1f} ms for 128 images and {steps[64]:.1f} ms for 64",
    ):
        assert sentence in text, sentence
    assert laddered.words == by_ranks.words == "undecided"
    assert all(f"单设备的 {speed_up.value:.2f} 倍" in chinese for speed_up in (cores, ddp_ranks))
    assert f"未见更快（{by_ranks.value:.2f}，不显著）" in chinese


def test_accuracies_on_real_data_are_documented_and_high_enough():
    results = {name: read_result(FIGURES / name) for name in ACCURACY_RUNS}
    for name, result in results.items():
        seconds = statistics.median(epoch.train_seconds for epoch in result.epochs[1:])
        measured = f"{result.epochs[-1].test_accuracy:.2%} | {seconds:.1f} s"
        row = f"| `{result.command}` | {measured} | [JSON](figures/{name}) |"
        assert row in text_of(*PAGES) and row in text_of(CHINESE)
        assert len(result.epochs) == 10
    mnist, ddp, cifar = (result.epochs[-1].test_accuracy for result in results.values())
    assert mnist >= 0.99 and abs(mnist - ddp) <= 0.003 and cifar >= 0.80


def test_equal_rows_are_not_distinguished_and_5_percent_is_found(benchmark):
    twins, measured = benchmark("twins"), load_json("benchmark", "twins.json")
    comparisons, scores = measured["comparisons"], measured["scores"]
    assert scores == twins.scores([twins.Comparison(**entry) for entry in comparisons])
    blocks = statistics.median(entry["blocks"] for entry in comparisons)
    assert len(comparisons) == 10 and scores["twins_told_apart"] == 0 and scores["slower_found"] >= 8
    found, held = scores["slower_found"], scores["true_in_interval"]
    sentence = (
        "It claimed a difference between equal rows in none of ten comparisons. It found the 5% in "
        f"{found} of ten, after {blocks:g} blocks (median), and {held} of the ten intervals contain the true value."
    )
    assert sentence in prose_of(*PAGES)


def test_false_alarms_are_as_rare_as_promised(benchmark):
    false_alarms = benchmark("false_alarms")
    alarms = load_json("false-alarms", "results.json")
    rows = [*alarms["fixed"], *alarms["looks"]]
    assert all(row["comparisons"] >= 2000 and row["any_false"] <= 0.055 for row in rows)
    assert {row["noise"] for row in rows} == {*false_alarms.NOISE}
    assert all(row["coverage"] >= 0.96 and row["any_slower"] <= 0.06 for row in alarms["fixed"])
    summary = false_alarms.summary(alarms["fixed"], alarms["looks"])
    assert (FIGURES / "false-alarms" / "summary.md").read_text() == summary
    found = {row["blocks"]: row["found"] for row in alarms["fixed"] if row["noise"] == "normal, 4%"}
    for sentence in (
        f"At most {max(row['any_false'] for row in rows):.1%} of the comparisons",
        f"three blocks find a speed-up of 1.20 in {found[3][2]:.1%} of the",
        f"but one of 1.10 in only {found[3][1]:.1%}, and ten blocks in {found[10][1]:.1%}",
    ):
        assert sentence in prose_of(*PAGES), sentence


def parse(type_in, flags):
    type_in("compare_parallel.py", *shlex.split(flags))
    compare_parallel.parse()


def seconds_of_recipes():
    """Return flags → seconds."""
    files = (FIGURES / "benchmark").glob("recipes*.json")
    return {flags: seconds for file in files for flags, seconds in json.loads(file.read_text())["seconds"].items()}


def test_the_documented_minutes_of_recipes_were_measured(benchmark):
    recipes, measured = benchmark("recipes"), seconds_of_recipes()
    shown = recipes.recipes(recipes.PAGE.read_text(encoding="utf-8"))
    assert shown == {flags: recipes.minutes(seconds) for flags, seconds in measured.items()}
    assert len(shown) >= 9 and max(shown.values()) < 15
    chinese = re.findall(r"\| `(--[^`]+)`[^|]* \| (\d+) 分钟 \|", CHINESE.read_text(encoding="utf-8"))
    assert len(chinese) >= 5 and all(shown[flags] == int(minutes) for flags, minutes in chinese)


@pytest.mark.parametrize(
    "page, takes_minutes", [("lecture.md", r"the command takes (\d+)\)"), ("lecture.zh-CN.md", r"命令要 (\d+) 分钟）")]
)
def test_the_commands_of_the_lecture_are_valid_and_take_the_measured_minutes(page, takes_minutes, type_in, benchmark):
    measured, minutes = seconds_of_recipes(), {}
    text = (PROJECT / "docs" / page).read_text(encoding="utf-8")
    for part in text.split("\n## ")[1:]:
        takes = re.search(takes_minutes, part.splitlines()[0])
        for number, command in enumerate(re.findall(r"^    python compare_parallel.py (.*)$", part, re.MULTILINE)):
            parse(type_in, command)
            if takes and not number:
                minutes[command.partition(" --predict")[0]] = int(takes[1])
    assert len(minutes) == 4
    assert minutes == {flags: benchmark("recipes").minutes(measured[flags]) for flags in minutes}


def test_the_cluster_pages_agree_and_their_commands_are_valid(type_in):
    pages = [(PROJECT / "docs" / name).read_text(encoding="utf-8") for name in ("cluster.md", "cluster.zh-CN.md")]
    commands, messages = (
        [re.findall(pattern, page, re.MULTILINE) for page in pages]
        for pattern in (r"^    (\S.*)$", r"^\| `([^`]+)` \|")
    )
    assert commands[0] == commands[1] and messages[0] == messages[1] and len(messages[0]) == 7
    compared = [flags for line in commands[0] for flags in re.findall(r"compare(?:_parallel\.py|\.sbatch) (.*)$", line)]
    assert len(compared) == 4
    for flags in compared:
        parse(type_in, flags)


def test_reliability():
    faults = load_json("faults", "faults.json")["faults"]
    results = load_json("faults", "kill-loop.json")
    text = text_of(PROJECT / "docs" / "reliability.md")
    assert len(faults) >= 60 and all(fault["handled"] for fault in faults)
    shown = re.findall(r"^    error: (.*)$", text, re.MULTILINE)
    assert len(shown) == 3 and all(any(line in fault["message"] for fault in faults) for line in shown)

    kills, completed = results["kills"], results["completed"]
    whole = sum(kill["runs_on_disk"] is not None for kill in kills)
    alive = sum(bool(kill["live_processes"]) for kill in kills)
    finished = sum((comparison["exit_code"], comparison["runs"]) == (0, 4) for comparison in completed)
    assert (whole, alive, finished) == (100, 0, len(completed))
    assert (
        f"with SIGKILL at {len(kills)} random moments: `results.json` whole {whole}/{len(kills)}, processes alive "
        f"after 2 s {alive}/{len(kills)}, completed with `--resume` {finished}/{len(completed)}"
    ) in prose_of(*PAGES)


@pytest.mark.parametrize("page", [*PAGES, CHINESE], ids=lambda page: page.name)
def test_every_linked_file_and_heading_exists(page):
    text = page.read_text(encoding="utf-8")
    for target, heading in re.findall(r"\]\(([^)#:]*)(#[^)]*)?\)", text):
        file = page.parent / target if target else page
        assert file.exists(), target
        headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE) if heading else ()
        anchors = [re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in headings]
        assert not heading or heading.removeprefix("#") in anchors, (target, heading)


def test_every_named_module_exists():
    text = text_of(*PAGES, CHINESE, *PROJECT.glob("docs/*.zh-CN.md"))
    files = re.findall(r"\b(?:common|comparison|tests|benchmarks)/[\w/]+\.py", text)
    modules = re.findall(r"\b(?:common|comparison|tests)\.\w+\.\w+", text)
    files += [f"{module.replace('.', '/')}.py" for module in modules]
    assert len(files) > 20 and not [file for file in files if not (PROJECT / file).exists()]


def test_every_committed_figure_is_shown_on_a_page():
    listed = subprocess.run(["git", "ls-files", "figures/*.png"], cwd=PROJECT, capture_output=True, text=True).stdout
    if not listed:
        pytest.skip("not a git clone")
    pages = text_of(*PAGES, CHINESE, *FIGURES.rglob("report.md"))
    assert not [file for file in listed.split() if Path(file).name not in pages]


def test_no_result_names_a_home_directory():
    for file in FIGURES.rglob("*.json"):
        assert not re.search(r"/(home|root|Users)/", file.read_text())


def test_pages_in_two_languages_have_the_same_commands_and_scripts():
    readmes, methods = (README, CHINESE), (PROJECT / "docs" / "methods.md", PROJECT / "docs" / "methods.zh-CN.md")
    scripts, commands = r"^\| `(\w+\.py)` \|", r"^    ((?:python|torchrun|accelerate) .*)$"
    for pages, patterns in (
        (readmes, (r"^    (make \w+)", r"^    (\.venv/\S+ .*)$", commands)),
        (methods, (scripts, commands)),
    ):
        for pattern in patterns:
            found, others = (re.findall(pattern, page.read_text(encoding="utf-8"), re.MULTILINE) for page in pages)
            assert found == others and len(found) >= 3, pattern


@pytest.mark.parametrize("page", ["methods.md", "methods.zh-CN.md"])
def test_the_documented_bytes_of_the_zero_stages(page):
    text = (PROJECT / "docs" / page).read_text(encoding="utf-8")
    rows = re.findall(r"^\| (DDP|\d) \| [^|]+ \| ([^|]+) \| ([^|]+) \| [^|]+ \| (\d) \|$", text, re.MULTILINE)
    assert [(stage, sent) for stage, *_, sent in rows] == [("DDP", "2"), ("1", "2"), ("2", "2"), ("3", "3")]
    for cut, (_, *cells, _) in enumerate(rows):  # each stage also shards the next of: optimizer state, gradient, weight
        for state, cell in zip((4, 8), cells, strict=True):
            own, shared = sum((state, 4, 4)[cut:]), sum((state, 4, 4)[:cut])
            assert cell == " + ".join([*([f"{own}"] if own else []), *([f"{shared}/N"] if shared else [])])


def test_the_readme_is_short_and_its_commands_are_valid(type_in):
    text = README.read_text(encoding="utf-8")
    assert len(text.split()) <= 900
    before = re.search(r"^\| Question \| `python compare_parallel.py (.*)` … \|$", text, re.MULTILINE)[1]
    questions = re.findall(r"^\| [^|]+\? \| `(--[^`]+)` \|$", text, re.MULTILINE)
    assert len(questions) == 6
    for flags in questions:
        parse(type_in, f"{before} {flags}")
