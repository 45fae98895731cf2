"""Each task accepts only the right answer, and each planted mistake has the symptoms it should have."""

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
PREDICTED = {  # computed in another way than in the tasks
    "bytes in a ring": [sum(SIZES) * 3 / 2],
    "memory of ZeRO-1": [sum(SIZES[::2]), sum(SIZES[1::2])],
    "memory of ZeRO-3": [sum(SIZES) / 2 * 3],
    "number of buckets": [3],
    "steps of an epoch": [21],  # the last batch is not full but kept
    "bubble of a pipeline": [1 / 5],
    "Amdahl's law": [sum(MS.values()) / sum(ms / 4 if "ward" in name else ms for name, ms in MS.items())],
}
MEASURED = {  # right flags and wrong ones
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
    """The working directory of the lessons, with the shared data."""
    (tmp_path / "data").symlink_to(data_root)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def task_of(title):
    return next(task for task in TASKS if task.title.partition(": ")[2] == title)


def symptoms_of(lesson, name):
    return tasks.symptoms(tasks.run(lesson, *MISTAKES[lesson][name][1:]), tasks.run(lesson))


@pytest.mark.parametrize(
    "lesson, name, row, value",
    [
        ("ddp", "sum", LENGTH, "2.00"),
        ("ddp", "zero", LENGTH, "1.00"),
        ("ddp", "shard", IMAGES, "24"),
        ("ddp", "start", APART, "1.0e-02"),
        ("ddp", "shard", APART, "0.0e+00"),
        ("ddp", "alone", APART, "2.4e-02"),
        ("accumulate", "mean", LENGTH, "4.00"),
        ("accumulate", "step", "optimizer steps", "50"),
        ("gpipe", "mean", LENGTH, "4.00"),
        ("gpipe", "last", LENGTH, "0.75"),
        ("ddp_buckets", "sum", LENGTH, "2.00"),
        ("ddp", "epoch", "of these, in the right run's first step", "5"),
        ("ddp_buckets", "early", "parameters on rank 0 that never change", "2 of 4"),
    ],
)
def test_a_planted_mistake_has_its_symptom(lesson, name, row, value):
    assert symptoms_of(lesson, name)[row] == value


def test_a_mistake_task_accepts_one_name_and_compares_the_symptoms_of_others():
    accepted = []
    for lesson, task in zip(MENUS, TASKS, strict=False):
        found = {name: task.grade(name) for name in MISTAKES[lesson]}
        (right,) = (name for name, wrong in found.items() if not wrong)
        accepted.append((lesson, right))
        assert f"{ERROR} {symptoms_of(lesson, right)[ERROR]}" in " ".join(task.question().split())
        for name in found.keys() - {right}:
            both = f"{ERROR} {symptoms_of(lesson, right)[ERROR]} {symptoms_of(lesson, name)[ERROR]}"
            assert both in " ".join(found[name].split()) and found[name].startswith(f"with {name!r} (right column), ")
        assert task.grade("none") == f"'none' is none of {', '.join(found)}"
    assert len({*accepted}) == len(TASKS) - len(PREDICTED) - len(MEASURED) - 2


def test_the_learning_rate_and_buffer_tasks():
    rate, buffer = task_of("a sum, and the learning rate"), task_of("what DDP does not average")
    assert rate.grade("1/200") == "" and rate.grade("0.01").startswith("with lr=0.01, a weight ends 1.3e-02 away")
    assert buffer.grade("conv1.1.running_mean") == buffer.grade("running_var") == ""
    assert all(" is the same on both ranks" in buffer.grade(name) for name in ("num_batches_tracked", "head.1.weight"))
    assert all(f"state_dict() has no {name!r}; it has conv1.0.weight, " in buffer.grade(name) for name in ("none", "n"))


@pytest.mark.parametrize("title", PREDICTED)
def test_a_prediction_task(title):
    assert task_of("steps of an epoch").grade("20.5") == "20.5 is too small"  # counts must be exact
    right, grade = PREDICTED[title], task_of(title).grade
    assert grade(" ".join(f"{value:.3g}" if value % 1 else f"{value:,}" for value in right)) == ""
    for factor, word in ((1.04, "large"), (0.96, "small")):
        wrong = [value * factor for value in right]
        assert grade(" ".join(map(repr, wrong))) == ", ".join(f"{value:g} is too {word}" for value in wrong)
    for answer in ("many", "1/0", "1 2 3", "nan", "-1", "0,2", "0,005"):
        with pytest.raises(SuiteError, match="this answer cannot be read"):
            grade(answer)


@pytest.mark.parametrize("title", MEASURED)
def test_a_measurement_task(title):
    right, wrong = ([task_of(title).grade(flags) for flags in answers] for answers in MEASURED[title])
    assert not any(right)
    assert all(re.match("these rows would run|compare_parallel.py runs nothing", reply) for reply in wrong)


def test_the_lecture_lists_every_task_in_both_languages():
    named = []
    for page, word in (("lecture.md", "Tasks:"), ("lecture.zh-CN.md", "练习：")):
        parts = (PROJECT / "docs" / page).read_text(encoding="utf-8").split("\n## ")[1:8]
        lists = [re.search(rf"\*{word}\*([\d–, 、]+)", part)[1] for part in parts]
        spans = [[re.split("–", span) for span in re.findall(r"[\d–]+", numbers)] for numbers in lists]
        named.append([[n for span in part for n in range(int(span[0]), int(span[-1]) + 1)] for part in spans])
    assert named[0] == named[1] and {*sum(named[0], [])} == {*range(1, len(TASKS) + 1)}


def run_grade(monkeypatch, capsys, *words):
    """Return the exit code and output of `python -m lessons.grade WORDS`."""
    monkeypatch.setattr(sys, "argv", ["grade", *map(str, words)])
    try:
        code = grade.main() or 0
    except SystemExit as ended:
        code = ended.code
    except SuiteError as error:
        return error.exit_code, str(error)
    return code, capsys.readouterr().out


def test_right_answers_are_saved_and_a_file_of_answers_is_graded(directory, monkeypatch, capsys):
    bubble, answers = TASKS.index(task_of("bubble of a pipeline")) + 1, directory / "answers.txt"
    assert run_grade(monkeypatch, capsys, bubble, "0.3") == (
        1,
        "Wrong: 0.3 is too large\nTry next: draw a row of boxes for each stage and count the empty places\n",
    )
    answers.write_text("# mine\n20: --methods ddp\n\n")
    assert run_grade(monkeypatch, capsys, bubble, "0.2")[0] == 0
    assert answers.read_text() == f"{bubble}: 0.2\n20: --methods ddp\n"
    code, listed = run_grade(monkeypatch, capsys)
    assert re.findall(r"^ *(\d+)  solved", listed, re.MULTILINE) == [f"{bubble}", "20"] and len(TASKS) == 20
    assert "GPipe with two equal stages" in run_grade(monkeypatch, capsys, bubble)[1]
    (directory / "hand-in.txt").write_text(f"{bubble} ： 1/5\n{bubble + 1}: many\n20: --methods ddp\n")
    code, graded = run_grade(monkeypatch, capsys, "all", "hand-in.txt")
    assert code == FAILED and graded.endswith("\n1 right, 2 wrong, 17 without an answer\n")
    assert re.findall(r"^ *\d+  (right|wrong)", graded, re.MULTILINE) == ["right", "wrong", "wrong"]
    answers.write_text(f"{bubble}: 0.2\n")
    assert run_grade(monkeypatch, capsys, "all")[0] == 0


@pytest.mark.parametrize("text, message", [("7\n", "line 1 of hand-in.txt"), ("\n21: x\n", "line 2 of hand-in.txt")])
def test_a_malformed_answer_is_refused_with_its_line_number(text, message, directory, monkeypatch, capsys):
    (directory / "hand-in.txt").write_text(text)
    code, printed = run_grade(monkeypatch, capsys, "all", "hand-in.txt")
    assert code == DATA and printed.startswith(message) and "type a task's number, 1 to 20" in printed
    assert run_grade(monkeypatch, capsys, "all", "none.txt")[0] == DATA
    assert {run_grade(monkeypatch, capsys, word)[0] for word in ("0", "21", "first")} == {USAGE}
