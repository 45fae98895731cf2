"""Each task accepts the right answer and no wrong one; what is planted into a lesson does what its name says."""

import re
import sys

import pytest

from common.errors import DATA, FAILED, USAGE, SuiteError
from lessons import grade, tasks
from lessons.tasks import MISTAKES, TASKS
from lessons.tiny import network
from tests.fixtures import PROJECT

MENUS = [lesson for lesson, number in tasks.ASKED.items() for _ in range(number)]
SIZES, MS = [weight.nbytes for weight in network().parameters()], tasks.phases()
LEFT = sum(MS.values()) - 3 / 4 * (MS["forward"] + MS["backward"])
PREDICTED = {  # by other means than the tasks'
    "bytes in a ring": [sum(SIZES) * 3 / 2],
    "memory of ZeRO-1": [sum(SIZES[::2]), sum(SIZES[1::2])],
    "memory of ZeRO-3": [sum(SIZES) / 2 * 3],
    "number of buckets": [3],
    "steps of an epoch": [21],  # the last batch is not full, and is not dropped
    "bubble of a pipeline": [1 / 5],
    "Amdahl's law": [sum(MS.values()) / LEFT],
}
MEASURED = {  # right flags, and wrong ones
    "loader workers": (
        ["--methods single --num-workers 0 2 4"],
        ["--methods single --num-workers 0 2", "--methods ddp --num-workers 0 2 4", "--help", "--methods dpp", "'"],
    ),
    "the exchange of gradients": (
        ["--methods ladder", "python compare_parallel.py --methods ddp ddp-no-sync"],
        ["--methods single ddp", "--methods ddp-1 ddp-no-sync"],
    ),
    "a pipeline and its control": (
        ["--methods pipeline pipeline-1 --micro-batches 8", "--methods pipeline-1f1b pipeline-1 --micro-batches 4 8"],
        ["--methods pipeline pipeline-1", "--methods pipeline --micro-batches 8", "--methods single pipeline-1"],
    ),
    "weak scaling": (
        ["--methods ddp --nproc 2 4 --scaling weak --batch-size 64"],
        ["--methods ddp --nproc 2 4 --batch-size 64", "--methods fsdp --nproc 2 4 --scaling weak --batch-size 64"],
    ),
}
LENGTH, ERROR = "length of the first step, as a multiple of the right one", "largest error of a weight at the end"
APART, IMAGES = "largest difference between the ranks at the end", "images in the first step, over all ranks"


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch, data_root):
    """Where the lessons run: with the data of all tests."""
    (tmp_path / "data").symlink_to(data_root)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def task_of(title):
    return next(task for task in TASKS if task.title.partition(": ")[2] == title)


def seen(lesson, name):
    return tasks.symptoms(tasks.run(lesson, *MISTAKES[lesson][name][1:]), tasks.run(lesson))


@pytest.mark.parametrize(
    "lesson, name, row, value",
    [
        *(("ddp", "sum", LENGTH, "2.00"), ("ddp", "zero", LENGTH, "1.00"), ("ddp", "shard", IMAGES, "24")),
        *(("ddp", "start", APART, "1.0e-02"), ("ddp", "shard", APART, "0.0e+00"), ("ddp", "alone", APART, "2.4e-02")),
        *(("accumulate", "mean", LENGTH, "4.00"), ("gpipe", "mean", LENGTH, "4.00"), ("gpipe", "last", LENGTH, "0.75")),
        *(("ddp_buckets", "sum", LENGTH, "2.00"), ("accumulate", "step", "optimizer steps", "50")),
        ("ddp", "epoch", "of these, in the right run's first step", "5"),
        ("ddp_buckets", "early", "parameters on rank 0 that never change", "2 of 4"),
    ],
)
def test_a_planted_mistake_is_seen(lesson, name, row, value):
    assert seen(lesson, name)[row] == value


def test_a_mistake_whose_line_the_lesson_does_not_have_is_named():
    with pytest.raises(AssertionError, match=r"lessons/ddp\.py does not have 'no line' once"):
        tasks.run("ddp", ("ddp", "no line", ""))


def test_a_task_on_a_mistake_accepts_one_name_and_shows_both_for_another():
    accepted = []
    for lesson, task in zip(MENUS, TASKS, strict=False):
        found = {name: task.grade(name) for name in MISTAKES[lesson]}
        (right,) = (name for name, wrong in found.items() if not wrong)
        accepted.append((lesson, right))
        assert f"{ERROR} {seen(lesson, right)[ERROR]}" in " ".join(task.question().split())
        for name in found.keys() - {right}:
            both = f"{ERROR} {seen(lesson, right)[ERROR]} {seen(lesson, name)[ERROR]}"
            assert both in " ".join(found[name].split()) and found[name].startswith(f"with {name!r} (right column), ")
        assert task.grade("none") == f"'none' is none of {', '.join(found)}"
    assert len({*accepted}) == len(TASKS) - len(PREDICTED) - len(MEASURED) - 2


def test_a_rate_and_a_buffer():
    rate, buffer = task_of("a sum, and the learning rate"), task_of("what DDP does not average")
    assert rate.grade("1/200") == "" and rate.grade("0.01").startswith("with lr=0.01, a weight ends 1.3e-02 away")
    assert buffer.grade("conv1.1.running_mean") == buffer.grade("running_var") == ""
    assert [buffer.grade(same)[-25:] for same in ("tracked", "head.1.weight")] == ["is the same on both ranks"] * 2
    assert buffer.grade("none").startswith("model.state_dict() has no 'none'; it has conv1.0.weight, ")


@pytest.mark.parametrize("title", PREDICTED)
def test_a_prediction_is_right_or_too_large_or_too_small(title):
    right, grade = PREDICTED[title], task_of(title).grade
    assert grade(" ".join(f"{value:.3g}" if value % 1 else f"{value}" for value in right)) == ""
    for factor, word in ((1.04, "large"), (0.96, "small")):
        wrong = [value * factor for value in right]
        assert grade(" ".join(map(repr, wrong))) == ", ".join(f"{value:g} is too {word}" for value in wrong)
    for unread in ("many", "1/0", "1 2 3", "nan", "-1"):
        with pytest.raises(SuiteError, match="this answer cannot be read"):
            grade(unread)


@pytest.mark.parametrize("title", MEASURED)
def test_flags_that_show_it_and_that_do_not(title):
    right, wrong = ([task_of(title).grade(flags) for flags in typed] for typed in MEASURED[title])
    assert not any(right) and all(
        re.match("these rows would run|compare_parallel.py runs nothing", each) for each in wrong
    )


def test_steps_are_counted_exactly():
    assert task_of("steps of an epoch").grade("20.5") == "20.5 is too small"


def test_each_part_of_the_lecture_names_its_tasks_and_all_are_named():
    named = []
    for page, word in (("lecture.md", "Tasks:"), ("lecture.zh-CN.md", "练习：")):
        parts = (PROJECT / "docs" / page).read_text(encoding="utf-8").split("\n## ")[1:8]
        lists = [re.search(rf"\*{word}\*([\d–, 、]+)", part)[1] for part in parts]
        spans = [[re.split("–", span) for span in re.findall(r"[\d–]+", numbers)] for numbers in lists]
        named.append([[n for span in part for n in range(int(span[0]), int(span[-1]) + 1)] for part in spans])
    assert named[0] == named[1] and {*sum(named[0], [])} == {*range(1, len(TASKS) + 1)}


def typed(monkeypatch, capsys, *words):
    """What `python -m lessons.grade` with these words exits with and prints."""
    monkeypatch.setattr(sys, "argv", ["grade", *map(str, words)])
    try:
        code = grade.main() or 0
    except SystemExit as ended:
        code = ended.code
    except SuiteError as error:
        return error.exit_code, str(error)
    return code, capsys.readouterr().out


def test_right_answers_are_kept_and_a_file_of_answers_is_graded(directory, monkeypatch, capsys):
    bubble, kept = TASKS.index(task_of("bubble of a pipeline")) + 1, directory / "answers.txt"
    assert typed(monkeypatch, capsys, bubble, "0.3") == (
        1,
        "Wrong: 0.3 is too large\nTry next: draw a row of boxes for each stage and count the empty places\n",
    )
    kept.write_text("# mine\n20: --methods ddp\n\n")
    assert typed(monkeypatch, capsys, bubble, "0.2")[0] == 0
    assert kept.read_text() == f"{bubble}: 0.2\n20: --methods ddp\n"
    code, listed = typed(monkeypatch, capsys)
    assert re.findall(r"^ *(\d+)  solved", listed, re.MULTILINE) == [f"{bubble}", "20"] and len(TASKS) == 20
    assert "GPipe with two equal stages" in typed(monkeypatch, capsys, bubble)[1]
    (directory / "hand-in.txt").write_text(f"{bubble} ： 1/5\n{bubble + 1}: many\n20: --methods ddp\n")
    code, graded = typed(monkeypatch, capsys, "all", "hand-in.txt")
    assert code == FAILED and graded.endswith("\n1 right, 2 wrong, 17 without an answer\n")
    assert re.findall(r"^ *\d+  (right|wrong)", graded, re.MULTILINE) == ["right", "wrong", "wrong"]
    kept.write_text(f"{bubble}: 0.2\n")
    assert typed(monkeypatch, capsys, "all")[0] == 0


@pytest.mark.parametrize("text, found", [("7\n", "line 1 of hand-in.txt"), ("\n21: x\n", "line 2 of hand-in.txt")])
def test_what_is_no_answer_is_refused_with_its_line(text, found, directory, monkeypatch, capsys):
    (directory / "hand-in.txt").write_text(text)
    code, said = typed(monkeypatch, capsys, "all", "hand-in.txt")
    assert code == DATA and said.startswith(found) and "type a task's number, 1 to 20" in said
    assert typed(monkeypatch, capsys, "all", "none.txt")[0] == DATA
    assert {typed(monkeypatch, capsys, word)[0] for word in ("0", "21", "first")} == {USAGE}
