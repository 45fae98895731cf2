"""No lesson: the tasks of lessons/grade.py. What is right is computed: a lesson runs, with or without a mistake planted
into its source, and is observed; or compare_parallel.py plans its rows.
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

HERE = Path(__file__).resolve().parent
EQUAL, NEAR = 1e-6, 0.03  # weights that differ by no more are equal; bytes and ratios may be wrong by this share
SHARE, MEAN = "images[rank::ranks], labels[rank::ranks]", "weight.grad /= ranks"
PART, GRADIENT = 'reduction="sum") / len(labels)', "torch.cat([weight.grad.flatten()"
THERE = "torch.cat([(weight.new_zeros(weight.shape) if weight.grad is None else weight.grad).flatten()"
# For each lesson: the name of a mistake, what it is, and its edits: a file, a text that is in it once, another instead.
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
ASKED = {"ddp": 4, "ddp_buckets": 1, "accumulate": 1, "gpipe": 1}  # how many tasks a lesson has; which, is drawn


# ---- A lesson, run and observed


@cache
def run(lesson: str, *edits: tuple[str, str, str]) -> list[SimpleNamespace]:
    """Run a lesson with these edits of its source, or of tiny's, and return what is observed of each rank.

    weights: those that it steps, before the first step, after it, and at the end; state: what it saves; images: of the
    first step; steps: how many; sent: the bytes of each all-reduce; momentum: the bytes of the optimizer's.
    """
    sources = {name: (HERE / f"{name}.py").read_text(encoding="utf-8") for name in ("tiny", lesson)}
    for name, old, new in edits:
        assert sources[name].count(old) == 1, f"lessons/{name}.py does not have {old!r} once; mend lessons/tasks.py"
        sources[name] = sources[name].replace(old, new)
    ranks = 1 if lesson == "accumulate" else 2
    imported_once = ["torch._dynamo", "lessons.tasks", "common.data.loaders", "common.models.build"]
    multiprocessing.set_forkserver_preload(imported_once)  # not tiny, which would start CUDA where there is a GPU
    with tempfile.TemporaryDirectory() as directory:
        start_processes(_rank, (ranks, sources, directory), ranks, start_method="forkserver")
        files = [f"{directory}/{rank}.pt" for rank in range(ranks)]
        return [SimpleNamespace(**torch.load(file, weights_only=True)) for file in files]


def _rank(rank, ranks, sources, directory):
    """Run a lesson as one of its ranks, on the CPU, and write what is observed into the directory."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": f"{rank}", "LOCAL_RANK": f"{rank}", "LOCAL_WORLD_SIZE": f"{ranks}"}
    os.environ |= {"CUDA_VISIBLE_DEVICES": "", **({"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {})}
    found = {"weights": [], "images": [], "sent": [], "steps": 0}
    sys.argv, send, sgd = ["lesson"], dist.all_reduce, torch.optim.SGD

    def own_sgd(weights, **settings):
        weights = [*weights]
        found["weights"].append([weight.detach().clone() for weight in weights])
        return sgd(weights, **settings)

    def see_images(_, inputs):
        if not found["steps"] and inputs[0].shape[1:] == (1, 28, 28):
            found["images"] += inputs[0].flatten(1).double().sum(1).tolist()

    def see_step(optimizer, *_):
        found["steps"] += 1
        found["momentum"] = sum(state["momentum_buffer"].nbytes for state in optimizer.state.values())
        now = [weight.detach().clone() for group in optimizer.param_groups for weight in group["params"]]
        found["weights"][min(found["steps"], 2) :] = [now]

    def all_reduce(tensor, *arguments, **settings):
        found["sent"].append(tensor.nbytes)
        return send(tensor, *arguments, **settings)

    def save(state):
        torch.save(found | {"state": {**state}}, f"{directory}/{rank}.pt")
        sys.modules["lessons.tiny"].part(state)

    register_optimizer_step_post_hook(see_step)
    register_module_forward_pre_hook(see_images)
    torch.optim.SGD, dist.all_reduce = own_sgd, all_reduce
    meet = {"init_method": f"file://{directory}/meet", "rank": rank, "world_size": ranks}
    dist.init_process_group = partial(dist.init_process_group, timeout=timedelta(seconds=60), **meet)
    for name, text in sources.items():
        module = sys.modules[f"lessons.{name}"] = ModuleType(f"lessons.{name}")
        exec(compile(text, f"lessons/{name}.py", "exec"), vars(module))
        if name == "tiny":
            module.part, module.save = module.save, save


# ---- Kinds of tasks


@dataclass(frozen=True)
class Task:
    """grade: returns what was found if an answer is wrong, else "". advice: what to try next."""

    title: str
    question: Callable[[], str]
    grade: Callable[[str], str]
    advice: str


def furthest(some: list[SimpleNamespace], others: list[SimpleNamespace], when: int = -1) -> float:
    """Return the largest difference between the weights of two lists of ranks."""
    ranks = [[weight.flatten() for rank in run for weight in rank.weights[when]] for run in (some, others)]
    return (torch.cat(ranks[0]) - torch.cat(ranks[1])).abs().max().item()


def symptoms(found: list[SimpleNamespace], right: list[SimpleNamespace]) -> dict[str, str]:
    """Return what is to be seen of a run beside the right one."""

    def length(ranks):
        return math.hypot(*((b - a).norm() for rank in ranks for a, b in zip(*rank.weights[:2], strict=True)))

    seen, wanted = ({image for rank in ranks for image in rank.images} for ranks in (found, right))
    still = [torch.equal(*pair) for pair in zip(*found[0].weights[::2], strict=True)]
    table = {
        "optimizer steps": f"{found[0].steps}",
        "length of the first step, as a multiple of the right one": f"{length(found) / length(right):.2f}",
        "images in the first step, over all ranks": f"{len(seen)}",
        "of these, in the right run's first step": f"{len(seen & wanted)}",
        "parameters on rank 0 that never change": f"{sum(still)} of {len(still)}",
    }
    for when, words in ((1, "after the first step"), (-1, "at the end")):
        table[f"largest error of a weight {words}"] = f"{furthest(found, right, when):.1e}"
        if len(found) > 1 and found[0].weights[0][0].shape == found[1].weights[0][0].shape:  # not stages of a pipeline
            table[f"largest difference between the ranks {words}"] = f"{furthest(found[:1], found[1:], when):.1e}"
    return table


def find_mistake(lesson: str, hidden: str) -> Task:
    """Return a task whose answer is the mistake that was planted; it is graded by planting the one that is named."""
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
        away = furthest(planted(answer), planted(hidden))
        beside = f"with {answer!r} (right column), a weight ends {away:.1e} away from the task's"
        return "" if away <= EQUAL else f"{beside}\n{seen(hidden, answer)}"

    advice = f"find a line in which the columns differ, and what in lessons/{lesson}.py causes it"
    return Task(f"break: a mistake in {lesson}.py", question, grade, advice)


def make_up_for_sum(answer: str) -> str:
    (rate,) = numbers(answer, 1)
    away = furthest(run("ddp", *MISTAKES["ddp"]["sum"][1:], ("tiny", "lr=0.01", f"lr={rate!r}")), run("ddp"))
    return "" if away <= EQUAL else f"with lr={rate:g}, a weight ends {away:.1e} away from the right one"


def differ_between_ranks(answer: str) -> str:
    one, other = (rank.state for rank in run("ddp", ("ddp", "network()", 'network("strided")')))
    named = [name for name in one if answer and name.endswith(answer)]
    equal = [name for name in named if torch.equal(one[name], other[name])]
    if not named:
        return f"model.state_dict() has no {answer!r}; it has {', '.join(one)}"
    return f"{equal[0]} is the same on both ranks" if equal else ""


def numbers(answer: str, wanted: int) -> list[float]:
    """Return the numbers of an answer; raise SuiteError (USAGE) unless there are as many as wanted."""
    with suppress(ValueError, ZeroDivisionError, OverflowError):
        found = [float(Fraction(word.replace(",", ""))) for word in answer.split()]
        if len(found) == wanted and min(found) > 0:
            return found
    form = "one number above 0: 1200, 0.25 or 1/4" if wanted == 1 else f"{wanted} numbers with spaces between them"
    raise SuiteError("this answer cannot be read", f"found {answer!r}", f"type {form}", USAGE)


def near(guess: float, value: float) -> bool:
    counted = value == int(value) < 100  # steps or buckets, not bytes or a ratio
    return guess == value if counted else abs(guess - value) <= NEAR * value


def predict(title: str, question: str, compute: Callable[[], Iterable[float]], advice: str) -> Task:
    """Return a task whose answer is what `compute` returns."""

    def grade(answer):
        expected = [*compute()]
        pairs = zip(numbers(answer, len(expected)), expected, strict=True)
        wrong = [(guess, "large" if guess > value else "small") for guess, value in pairs if not near(guess, value)]
        return ", ".join(f"{guess:g} is too {size}" for guess, size in wrong)

    return Task(f"predict: {title}", lambda: question, grade, advice)


def measure(title: str, question: str, shows: Callable[[list], bool], advice: str) -> Task:
    """Return a task whose answer is flags of the comparison; shows(rows): whether what they plan shows it."""

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
    """Return the rows that compare_parallel.py would run on four cores without a GPU."""
    import compare_parallel  # here, so that ranks need not
    from comparison.methods import Machine

    machine, words = Machine(0, 4), shlex.split(re.sub(r"^.*compare_parallel\.py", "", flags))
    with (
        mock.patch.object(sys, "argv", ["compare_parallel.py", *words]),
        mock.patch.object(compare_parallel, "find_blocks", lambda *_: {}),  # which asks for the data
    ):
        arguments, shared = compare_parallel.parse()
        shared = compare_parallel.choose_loader(arguments, machine, shared)
        return [row for row in compare_parallel.plan_rows(arguments, machine, shared) if not row.skip and not row.role]


def typed(rows: list) -> list[str]:
    return [shlex.join(row.command) for row in rows]


def idle_share(stages: int, micro_batches: int) -> float:
    """Return for how much of a step each stage of GPipe waits, by starting every pass as early as it can be."""
    free, costs = [0] * stages, (1, 2)  # when each stage is free; what a forward and a backward pass take
    for cost, order in zip(costs, (range(stages), range(stages - 1, -1, -1)), strict=True):
        for _ in range(micro_batches):
            there = 0
            for stage in order:
                there = free[stage] = max(free[stage], there) + cost
    return 1 - micro_batches * sum(costs) / max(free)


def phases() -> dict[str, float]:
    """Return the milliseconds of a step's phases that were measured on one device."""
    return read_result(HERE.parent / "figures" / "mnist-lenet-single.json").epochs[-1].phases.known


def speed_up(devices: int) -> float:
    """Return how many times as fast a step is if devices divide its two passes, and nothing else gets faster."""
    divided, total = phases()["forward"] + phases()["backward"], sum(phases().values())
    return total / (total - divided + divided / devices)


SMALL = (("ddp_buckets", "2**20, 25 * 2**20", "2**16, 2**16"), ("ddp_buckets", '"mlp"', '"lenet"'))
_draw = random.Random(27)
TASKS = [
    *(find_mistake(lesson, name) for lesson, n in ASKED.items() for name in _draw.sample([*MISTAKES[lesson]], n)),
    Task(
        "break: a sum, and the learning rate",
        lambda: (
            "lessons/ddp.py adds up the gradients of two ranks, and does not divide by their number. With which "
            "learning rate, instead of 0.01, does it end with the right weights nevertheless?"
        ),
        make_up_for_sum,
        "what does SGD do with a gradient that is too large by a factor?",
    ),
    Task(
        "break: what DDP does not average",
        lambda: (
            'With network("strided"), which has BatchNorm, lessons/ddp.py ends with the same parameters on both '
            "ranks, but model.state_dict() has entries that differ between them. Name one."
        ),
        differ_between_ranks,
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
        lambda: [3 * run("fsdp")[0].momentum],  # which is as large as its share of the weights, and of the gradients
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
        lambda: [idle_share(2, 4)],
        "draw a row of boxes for each stage and count the empty places",
    ),
    predict(
        "Amdahl's law",
        f"Milliseconds of a step on one device: {', '.join(f'{name} {ms:.2f}' for name, ms in phases().items())}. Four "
        "devices divide the forward and the backward pass, and all else takes as long as before. The speed-up?",
        lambda: [speed_up(4)],
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
            " --no-sync" in each and each.replace(" --no-sync", "") in typed(rows) for each in typed(rows)
        ),
        "see --methods in `python compare_parallel.py --help`",
    ),
    measure(
        "a pipeline and its control",
        "compare a pipeline of two stages and 8 micro-batches with the same micro-batches on one device",
        lambda rows: (
            {"1", "2"} <= {*re.findall(r"pipeline_train.py --spawn (\d) --micro-batches 8 ", str(typed(rows)))}
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
