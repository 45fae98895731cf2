"""The tasks of lessons/grade.py.

The right answers are computed: by running a lesson, with or without a mistake planted into its source, and observing
it, or by letting compare_parallel.py plan its rows.
"""

import math
import multiprocessing
import os
import random
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction
from functools import cache, partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest import mock

import torch
import torch.distributed as dist
from torch.multiprocessing import start_processes
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from common.errors import USAGE, SuiteError
from common.files.results import read_result

LESSONS = Path(__file__).resolve().parent
EQUAL = 1e-6  # weights that differ by no more than this count as equal
NEAR = 0.03  # relative tolerance for answers in bytes and ratios
SHARE, MEAN = "images[rank::ranks], labels[rank::ranks]", "weight.grad /= ranks"
PART, GRADIENT = 'reduction="sum") / len(labels)', "torch.cat([weight.grad.flatten()"
THERE = "torch.cat([(weight.new_zeros(weight.shape) if weight.grad is None else weight.grad).flatten()"
# lesson → name of a mistake → (description, *edits). An edit is (file, text that occurs in it once, replacement).
MISTAKES = {
    "ddp": {
        "sum": ("gradients are added up and not averaged", ("ddp", MEAN, "pass")),
        "start": (
            "the ranks begin with different weights",
            ("ddp", "dist.broadcast(weight.data, src=0)", "weight.data += 0.01 * rank"),
        ),
        "shard": ("all ranks have the same share of a batch", ("ddp", SHARE, "images[::ranks], labels[::ranks]")),
        "zero": ("zero_grad is missing", ("ddp", "optimizer.zero_grad()", "pass")),
        "alone": ("nothing is exchanged", ("ddp", "dist.all_reduce(weight.grad)", "pass"), ("ddp", MEAN, "pass")),
        "epoch": ("set_epoch is forgotten", ("tiny", "sampler.set_epoch(1)", "pass")),
    },
    "ddp_buckets": {
        "early": (
            "a bucket is sent when it has its first gradient",
            ("ddp_buckets", "if not missing[number]:", "if missing[number] == len(buckets[number]) - 1:"),
            ("ddp_buckets", GRADIENT, THERE),
        ),
        "sum": ("gradients are added up and not averaged", ("ddp_buckets", "]) / ranks", "])")),
        "copy": ("the means are not copied back", ("ddp_buckets", "weight.grad.copy_(mean.view_as(weight))", "pass")),
    },
    "accumulate": {
        "mean": ("each part's loss is its own mean", ("accumulate", PART, 'reduction="mean")')),
        "step": ("each part has a step", ("accumulate", "loss.backward()", "loss.backward(); optimizer.step()")),
        "zero": ("each part begins with zero_grad", ("accumulate", "loss = ", "optimizer.zero_grad(); loss = ")),
    },
    "gpipe": {
        "last": (
            "the last micro-batch does not go backward",
            ("gpipe", "for entry in kept:", "for entry in kept[:-1]:"),
        ),
        "mean": ("each micro-batch's loss is its own mean", ("gpipe", PART, 'reduction="mean")')),
        "zero": ("zero_grad is missing", ("gpipe", "optimizer.zero_grad()", "pass")),
    },
}
ASKED = {"ddp": 4, "ddp_buckets": 1, "accumulate": 1, "gpipe": 1}  # tasks per lesson; the mistakes are drawn at random


# ---- Running and observing a lesson


@cache
def run(lesson: str, *edits: tuple[str, str, str]) -> list[SimpleNamespace]:
    """Run a lesson after editing its source or tiny's. Return what was observed on each rank.

    weights: the optimizer's, before the first step, after it, and at the end; state: what the lesson saves; images: the
    pixel sum of each image of the first step; sent: the bytes of each all-reduce; momentum: its bytes.
    """
    sources = {name: (LESSONS / f"{name}.py").read_text(encoding="utf-8") for name in ("tiny", lesson)}
    for name, old, new in edits:
        assert sources[name].count(old) == 1, f"lessons/{name}.py does not have {old!r} once; mend lessons/tasks.py"
        sources[name] = sources[name].replace(old, new)
    ranks = 1 if lesson == "accumulate" else 2
    preloaded = ["torch._dynamo", "lessons.tasks", "common.data.loaders", "common.models.build"]
    multiprocessing.set_forkserver_preload(preloaded)  # not tiny, which would initialise CUDA
    with tempfile.TemporaryDirectory() as directory:
        start_processes(_rank, (ranks, sources, directory), ranks, start_method="forkserver")
        files = [f"{directory}/{rank}.pt" for rank in range(ranks)]
        return [SimpleNamespace(**torch.load(file, weights_only=True)) for file in files]


def _rank(rank, ranks, sources, directory):
    """Run a lesson as one rank on the CPU, and save the observations as RANK.pt in `directory`."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": f"{rank}", "LOCAL_RANK": f"{rank}", "LOCAL_WORLD_SIZE": f"{ranks}"}
    os.environ |= {"CUDA_VISIBLE_DEVICES": "", **({"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {})}
    found = {"weights": [], "images": [], "sent": [], "steps": 0}
    sys.argv, all_reduce, sgd = ["lesson"], dist.all_reduce, torch.optim.SGD

    def recording_sgd(weights, **settings):
        weights = [*weights]
        found["weights"].append([weight.detach().clone() for weight in weights])
        return sgd(weights, **settings)

    def record_images(_, inputs):
        if not found["steps"] and inputs[0].shape[1:] == (1, 28, 28):
            found["images"] += inputs[0].flatten(1).double().sum(1).tolist()

    def record_step(optimizer, *_):
        found["steps"] += 1
        found["momentum"] = sum(state["momentum_buffer"].nbytes for state in optimizer.state.values())
        now = [weight.detach().clone() for group in optimizer.param_groups for weight in group["params"]]
        found["weights"][min(found["steps"], 2) :] = [now]

    def recording_all_reduce(tensor, *arguments, **settings):
        found["sent"].append(tensor.nbytes)
        return all_reduce(tensor, *arguments, **settings)

    def save(state):
        torch.save(found | {"state": {**state}}, f"{directory}/{rank}.pt")
        sys.modules["lessons.tiny"].original_save(state)

    register_optimizer_step_post_hook(record_step)
    register_module_forward_pre_hook(record_images)
    torch.optim.SGD, dist.all_reduce = recording_sgd, recording_all_reduce
    rendezvous = {"init_method": f"file://{directory}/rendezvous", "rank": rank, "world_size": ranks}
    dist.init_process_group = partial(dist.init_process_group, timeout=timedelta(seconds=60), **rendezvous)
    for name, text in sources.items():
        module = sys.modules[f"lessons.{name}"] = ModuleType(f"lessons.{name}")
        exec(compile(text, f"lessons/{name}.py", "exec"), vars(module))
        if name == "tiny":
            module.original_save, module.save = module.save, save


# ---- Kinds of tasks


@dataclass(frozen=True)
class Task:
    """An exercise. grade() returns "" for a right answer, else what is wrong. advice: what to try next."""

    title: str
    question: Callable[[], str]
    grade: Callable[[str], str]
    advice: str


def difference(some: list[SimpleNamespace], others: list[SimpleNamespace], when: int = -1) -> float:
    """Return the largest difference of any weight between two lists of ranks. when: an index of their weights."""

    def flat(ranks):
        return torch.cat([weight.flatten() for rank in ranks for weight in rank.weights[when]])

    return (flat(some) - flat(others)).abs().max().item()


def symptoms(found: list[SimpleNamespace], right: list[SimpleNamespace]) -> dict[str, str]:
    """Return how a run differs from the right one, as the rows of a table."""

    def length(ranks):
        return math.hypot(*((b - a).norm() for rank in ranks for a, b in zip(*rank.weights[:2], strict=True)))

    seen, expected = ({image for rank in ranks for image in rank.images} for ranks in (found, right))
    unchanged = [torch.equal(*pair) for pair in zip(*found[0].weights[::2], strict=True)]
    table = {
        "optimizer steps": f"{found[0].steps}",
        "length of the first step, as a multiple of the right one": f"{length(found) / length(right):.2f}",
        "images in the first step, over all ranks": f"{len(seen)}",
        "of these, in the right run's first step": f"{len(seen & expected)}",
        "parameters on rank 0 that never change": f"{sum(unchanged)} of {len(unchanged)}",
    }
    for when, words in ((1, "after the first step"), (-1, "at the end")):
        table[f"largest error of a weight {words}"] = f"{difference(found, right, when):.1e}"
        if len(found) > 1 and found[0].weights[0][0].shape == found[1].weights[0][0].shape:  # not stages of a pipeline
            table[f"largest difference between the ranks {words}"] = f"{difference(found[:1], found[1:], when):.1e}"
    return table


def find_mistake(lesson: str, hidden: str) -> Task:
    """Return a task to name the planted mistake. An answer is graded by planting the mistake it names."""
    mistakes = MISTAKES[lesson]

    def planted(name):
        return run(lesson, *mistakes[name][1:])

    def seen(*names):
        columns = [symptoms(planted(name), run(lesson)) for name in names]
        return "\n".join(f"  {row:58}" + "".join(f"{column[row]:>10}" for column in columns) for row in columns[0])

    def question():
        menu = "\n".join(f"  {name:7}{about}" for name, (about, *_) in mistakes.items())
        return f"One of these mistakes was planted into lessons/{lesson}.py. Which?\n\n{menu}\n\n{seen(hidden)}"

    def grade(answer):
        if answer not in mistakes:
            return f"{answer!r} is none of {', '.join(mistakes)}"
        away = difference(planted(answer), planted(hidden))
        beside = f"with {answer!r} (right column), a weight ends {away:.1e} away from the task's"
        return "" if away <= EQUAL else f"{beside}\n{seen(hidden, answer)}"

    advice = f"find a line in which the columns differ, and what in lessons/{lesson}.py causes it"
    return Task(f"break: a mistake in {lesson}.py", question, grade, advice)


def grade_learning_rate(answer: str) -> str:
    (rate,) = numbers(answer, 1)
    summed = run("ddp", ("ddp", MEAN, "pass"), ("tiny", "lr=0.01", f"lr={rate!r}"))
    away = difference(summed, run("ddp"))
    return "" if away <= EQUAL else f"with lr={rate:g}, a weight ends {away:.1e} away from the right one"


def grade_buffer(answer: str) -> str:
    one, other = (rank.state for rank in run("ddp", ("ddp", "network()", 'network("strided")')))
    named = [name for name in one if f".{name}".endswith(f".{answer}")]
    equal = [name for name in named if torch.equal(one[name], other[name])]
    if not named:
        return f"model.state_dict() has no {answer!r}; it has {', '.join(one)}"
    return f"{equal[0]} is the same on both ranks" if equal else ""


def numbers(answer: str, wanted: int) -> list[float]:
    """Return the numbers in an answer. Raise SuiteError (USAGE) unless there are `wanted` of them."""
    with suppress(ValueError, ZeroDivisionError, OverflowError):
        found = [float(Fraction(re.sub(r"(?<!^0),(?=\d{3}\b)|,$", "", word))) for word in answer.split()]
        if len(found) == wanted and min(found) > 0:
            return found
    form = "one number above 0: 1200, 0.25 or 1/4" if wanted == 1 else f"{wanted} numbers with spaces between them"
    raise SuiteError("this answer cannot be read", f"found {answer!r}", f"type {form}", USAGE)


def near(guess: float, value: float) -> bool:
    is_count = value == int(value) < 100  # of steps or buckets, not bytes or a ratio
    return guess == value if is_count else abs(guess - value) <= NEAR * value


def predict(title: str, question: str, compute: Callable[[], Iterable[float]], advice: str) -> Task:
    """Return a task to predict the numbers that compute() returns."""

    def grade(answer):
        expected = [*compute()]
        pairs = zip(numbers(answer, len(expected)), expected, strict=True)
        wrong = [(guess, "large" if guess > value else "small") for guess, value in pairs if not near(guess, value)]
        return ", ".join(f"{guess:g} is too {size}" for guess, size in wrong)

    return Task(f"predict: {title}", lambda: question, grade, advice)


def measure(title: str, question: str, shows: Callable[[list], bool], advice: str) -> Task:
    """Return a task to find flags of compare_parallel.py. shows(rows): whether the planned rows answer the question."""

    def grade(answer):
        try:
            rows = plan(answer)
        except (SuiteError, SystemExit, ValueError) as refusal:
            said = "it prints its help" if isinstance(refusal, SystemExit) else refusal
            return f"compare_parallel.py runs nothing with this: {said}"
        return "" if shows(rows) else f"these rows would run: {', '.join(row.name for row in rows)}"

    question = f"Which flags of compare_parallel.py {question}? Graded by what it would run; nothing is measured."
    return Task(f"measure: {title}", lambda: question, grade, advice)


def plan(flags: str) -> list:
    """Return the rows that compare_parallel.py would run with these flags on four cores without a GPU."""
    import compare_parallel  # not at the top: the ranks do not need it
    from comparison.methods import Machine

    machine, words = Machine(0, 4), shlex.split(re.sub(r"^.*compare_parallel\.py", "", flags))
    with (
        mock.patch.object(sys, "argv", ["compare_parallel.py", *words]),
        mock.patch.object(compare_parallel, "find_blocks", lambda *_: {}),  # it would load the data
    ):
        arguments, shared = compare_parallel.parse()
        shared = compare_parallel.choose_loader(arguments, machine, shared)
        return [row for row in compare_parallel.plan_rows(arguments, machine, shared) if not row.skip and not row.role]


def commands(rows: list) -> list[str]:
    return [shlex.join(row.command) for row in rows]


def phases() -> dict[str, float]:
    """Return the measured milliseconds of each phase of a step on one device."""
    return read_result(LESSONS.parent / "figures" / "mnist-lenet-single.json").epochs[-1].phases.known


SMALL = (("ddp_buckets", "2**20, 25 * 2**20", "2**16, 2**16"), ("ddp_buckets", '"mlp"', '"lenet"'))
_random = random.Random(27)
TASKS = [
    *(find_mistake(lesson, name) for lesson, n in ASKED.items() for name in _random.sample([*MISTAKES[lesson]], n)),
    Task(
        "break: a sum, and the learning rate",
        lambda: (
            "lessons/ddp.py adds up the gradients of two ranks, and does not divide by their number. With which "
            "learning rate, instead of 0.01, does it end with the right weights nevertheless?"
        ),
        grade_learning_rate,
        "what does SGD do with a gradient that is too large by a factor?",
    ),
    Task(
        "break: what DDP does not average",
        lambda: (
            'With network("strided"), which has BatchNorm, lessons/ddp.py ends with the same parameters on both '
            "ranks, but model.state_dict() has entries that differ between them. Name one."
        ),
        grade_buffer,
        "what of BatchNorm changes in training, but has no gradient?",
    ),
    predict(
        "bytes in a ring",
        "If lessons/ddp.py had four ranks, and all-reduce went round a ring: how many bytes of gradients would each "
        "rank send in a step?",
        lambda: [2 * (4 - 1) / 4 * sum(run("ddp")[0].sent) / run("ddp")[0].steps],
        "multiply the bytes of all gradients by the factor in the last lines of lessons/collectives.py",
    ),
    predict(
        "memory of ZeRO-1",
        "How many bytes of momentum has rank 0 of lessons/zero1.py at the end, and how many rank 1? (two numbers)",
        lambda: [rank.momentum for rank in run("zero1")],
        "print the parameters' sizes in their order, and see which ones each rank gives to its optimizer",
    ),
    predict(
        "memory of ZeRO-3",
        "How many bytes of weights, gradients and momentum together does rank 0 of lessons/fsdp.py have right after "
        "optimizer.step()?",
        lambda: [3 * run("fsdp")[0].momentum],  # its share of the weights and of the gradients has the same size
        "what do free() and reduce() leave?",
    ),
    predict(
        "number of buckets",
        'With FIRST, LATER = 2**16, 2**16 and network("lenet"), how many buckets does lessons/ddp_buckets.py send in a '
        "step?",
        lambda: [len(run("ddp_buckets", *SMALL)[0].sent) / run("ddp_buckets", *SMALL)[0].steps],
        "go through the parameters from the last to the first, as the lesson does; one may be larger than a bucket",
    ),
    predict(
        "steps of an epoch",
        "With train_size=1000 and batch_size=48 in lessons/tiny.py, whose sampler has drop_last=True: how many steps "
        "does each rank of lessons/ddp.py take?",
        lambda: [run("ddp", ("tiny", "train_size=480", "train_size=1000"))[0].steps],
        "what does drop_last of a DistributedSampler leave out, and what that of a DataLoader?",
    ),
    predict(
        "bubble of a pipeline",
        "GPipe with two equal stages and four micro-batches: for which share of a step does each stage wait?",
        lambda: [(2 - 1) / (4 + 2 - 1)],  # (P - 1) / (M + P - 1), see lessons/gpipe.py
        "draw a row of boxes for each stage and count the empty places",
    ),
    predict(
        "Amdahl's law",
        f"Milliseconds of a step on one device: {', '.join(f'{name} {ms:.2f}' for name, ms in phases().items())}. Four "
        "devices divide the forward and the backward pass, and all else takes as long as before. The speed-up?",
        lambda: [(whole := sum(phases().values())) / (whole - 3 / 4 * (phases()["forward"] + phases()["backward"]))],
        "add up what stays, and a quarter of what is divided",
    ),
    measure(
        "loader workers",
        "compare no, 2 and 4 loader workers on one device",
        lambda rows: {0, 2, 4} <= {row.planned.num_workers for row in rows if row.method == "single"},
        "one flag takes several values, and makes a row of each",
    ),
    measure(
        "the exchange of gradients",
        "give two rows that differ in nothing but that one exchanges gradients and the other does not",
        lambda rows: any(
            " --no-sync" in each and each.replace(" --no-sync", "") in commands(rows) for each in commands(rows)
        ),
        "see --methods in `python compare_parallel.py --help`",
    ),
    measure(
        "a pipeline and its control",
        "compare a pipeline of two stages and 8 micro-batches with the same micro-batches on one device",
        lambda rows: (
            {"1", "2"} <= {*re.findall(r"pipeline_train.py --spawn (\d) --micro-batches 8 ", str(commands(rows)))}
        ),
        "see docs/methods.md: which row is the fair control of a pipeline?",
    ),
    measure(
        "weak scaling",
        "compare DDP on 2 and on 4 ranks, with 64 images per step on each rank",
        lambda rows: (
            {("ddp", n, 64) for n in (2, 4)}
            <= {(row.method, row.planned.shares, row.planned.per_device_batch_size) for row in rows}
        ),
        "see --nproc and --scaling in `python compare_parallel.py --help`",
    ),
]
