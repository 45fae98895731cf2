"""Twenty tasks on the lessons, graded by running the code they ask about.

python -m lessons.grade               # list the tasks and which are solved
python -m lessons.grade 7             # show task 7
python -m lessons.grade 7 ANSWER      # grade an answer; a right one is added to answers.txt
python -m lessons.grade all [FILE]    # grade lines like "7: ANSWER" of a file (answers.txt)
"""

import re
import sys
from pathlib import Path
from textwrap import fill

from common.errors import DATA, FAILED, USAGE, SuiteError
from common.files.reading import read_text
from common.files.writing import write_text
from common.machine.entry import run_script
from lessons.tasks import TASKS

ANSWERS = Path("answers.txt")


def read_answers(file: Path) -> dict[int, str]:
    """Return the answers in a file by task number. Raise SuiteError (DATA) if the file or a line cannot be read."""
    try:
        lines = read_text(file).splitlines()
    except (OSError, ValueError) as error:
        raise SuiteError(f"cannot read {file}", f"{error}", "name a file of lines like 7: ANSWER", DATA) from None
    answers = {}
    for number, line in enumerate(map(str.strip, lines), start=1):
        if not line or line.startswith("#"):
            continue
        entry = re.fullmatch(r"(\d+)\s*[:：]\s*(.+)", line)
        if not entry or not 1 <= int(entry[1]) <= len(TASKS):
            advice = f"type a task's number, 1 to {len(TASKS)}, then a colon and the answer"
            raise SuiteError(f"line {number} of {file} is no answer", f"found {line!r}", advice, DATA)
        answers[int(entry[1])] = entry[2]
    return answers


def saved_answers() -> dict[int, str]:
    return read_answers(ANSWERS) if ANSWERS.exists() else {}


def show_list() -> None:
    answers = saved_answers()
    for number, task in enumerate(TASKS, start=1):
        print(f"{number:2}  {'solved' if number in answers else '':6}  {task.title}")
    print(f"\nSolved: {len(answers)} of {len(TASKS)}, by {ANSWERS}. To see one: python -m lessons.grade 1")


def show(number: int) -> None:
    lines = [*TASKS[number - 1].question().splitlines(), "", f"To answer: python -m lessons.grade {number} ANSWER"]
    print(*(fill(line, 100) for line in lines), sep="\n")


def grade(number: int, answer: str) -> bool:
    """Grade an answer and save it if it is right. Return whether it is."""
    if found := TASKS[number - 1].grade(answer):
        print(f"Wrong: {found}\nTry next: {TASKS[number - 1].advice}")
    else:
        answers = saved_answers() | {number: answer}
        write_text("".join(f"{key}: {text}\n" for key, text in sorted(answers.items())), ANSWERS)
        print(f"Right: {ANSWERS} has it now.")
    return not found


def grade_all(file: Path) -> bool:
    """Grade the answers in a file. Return whether all are right."""
    answers, wrong = read_answers(file), 0
    for number, answer in sorted(answers.items()):
        try:
            found = TASKS[number - 1].grade(answer)
        except SuiteError as error:
            found = f"{error}"
        wrong += bool(found)
        print(f"{number:2}  {'wrong: ' + found.splitlines()[0] if found else 'right'}", flush=True)
    print(f"\n{len(answers) - wrong} right, {wrong} wrong, {len(TASKS) - len(answers)} without an answer")
    return not wrong


def main() -> None:
    first, *answer = sys.argv[1:] or [""]
    if not first:
        show_list()
    elif first == "all" and len(answer) <= 1:
        sys.exit(0 if grade_all(Path(answer[0]) if answer else ANSWERS) else FAILED)
    elif not first.isdecimal() or not 1 <= int(first) <= len(TASKS):
        found, advice = f"found {first!r}, the tasks are 1 to {len(TASKS)}", "see: python -m lessons.grade"
        raise SuiteError("there is no such task", found, advice, USAGE)
    elif answer:
        sys.exit(0 if grade(int(first), " ".join(answer).strip()) else FAILED)
    else:
        show(int(first))


if __name__ == "__main__":
    run_script(main)
