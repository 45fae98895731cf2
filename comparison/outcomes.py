"""What became of a run or of a trial, and how much other programs disturbed it."""

from collections.abc import Iterable
from dataclasses import dataclass

from common.files.results import RunResult
from comparison.words import count, say

MOST_FOREIGN = 0.1  # share of the cores, or of a GPU's time, that other programs may use before times prove nothing
TRIAL_STEPS = 3  # the first step allocates the gradients and the optimizer's state, which stay allocated
TRIAL_MARGIN = 0.05  # share of --memory-limit that a trial leaves free: the peaks of equal runs differ by a few percent


@dataclass(frozen=True)
class CardUse:
    """One GPU during the timed epochs of a run. A field is None if the card or its driver does not report it.

    device: the run's name for it. busy: share of the time in which any kernel ran. memory_bytes: peak memory of the
    run's processes, CUDA contexts included. joules: mean per epoch, by the card's counter; watts: joules per second.
    megahertz: mean clock of the multiprocessors. held_down: share of the time in which heat or a power limit lowered
    the clocks. foreign: share of the time in which another program computed there.
    """

    device: str
    busy: float | None = None
    memory_bytes: int | None = None
    watts: float | None = None
    joules: float | None = None
    megahertz: float | None = None
    held_down: float | None = None
    foreign: float | None = None


@dataclass(frozen=True)
class Outcome:
    """How one run ended. result: None if it left none.

    configuration: the Configuration's name; block: which repetition. status and reason are the RunResult's if that is
    complete; otherwise "failed" with the cause, or "out of memory" with the batch that did not fit. wall_seconds: from
    start to exit, without the time it waited for its turns; of a fork, with its template's start. foreign_cores: mean
    number of cores that other processes kept busy during its turns; None if unknown (see busy_seconds), and on several
    nodes. Time in which the comparison itself was stopped counts as if others had all cores. cards: its GPUs, if NVML
    is installed. stolen: share of its turns in which another virtual machine had a core, for the core that lost most,
    if the hypervisor reports it.
    """

    configuration: str
    block: int
    status: str
    reason: str
    command: str
    log: str
    exit_code: int
    wall_seconds: float
    foreign_cores: float | None = None
    result: RunResult | None = None
    cards: tuple[CardUse, ...] = ()
    stolen: float | None = None


@dataclass(frozen=True)
class Foreign:
    """The most that other programs used during any of several runs that ended well.

    busy: mean number of busy cores, of `cores`. gpu: share of the time in which another program computed on one of the
    run's GPUs. taken: how much of a core the run's own threads lacked; stolen: share of a core that another virtual
    machine had.
    """

    busy: float
    cores: float
    gpu: float
    taken: float
    stolen: float

    @property
    def share(self) -> float:
        """The largest of the shares: a rank that has to share one core delays all others."""
        return max(self.busy / self.cores, self.gpu, self.taken, self.stolen)

    @property
    def too_much(self) -> bool:
        """Whether times measured next to these programs prove nothing."""
        return self.share > MOST_FOREIGN

    @property
    def words(self) -> str:
        """What other programs did, as the end of a sentence that starts with "other programs"."""
        template = "kept up to {n:.1f} of {cores} busy"
        if self.gpu:
            template = "computed on a GPU for {m:.0%} of the time"
        if self.gpu and self.busy:
            template = "kept up to {n:.1f} of {cores} busy and computed on a GPU for {m:.0%} of the time"
        taken = max(self.taken, self.stolen)
        if taken > MOST_FOREIGN >= max(self.busy / self.cores, self.gpu):
            template = "took a core for {t:.0%} of the time"
            if self.stolen > self.taken:
                template = "or another virtual machine took a core for {t:.0%} of the time"
        return say(template, n=self.busy, cores=count(self.cores, "core"), m=self.gpu, t=taken)


def foreign_of(outcomes: Iterable[Outcome], cores: float) -> Foreign:
    """Return the most that other programs used during the runs that ended well, on a machine with this many cores."""
    ended_well = [outcome for outcome in outcomes if outcome.status == "ok"]
    busy, taken, gpu, stolen = [0.0], [0.0], [0.0], [0.0]
    for outcome in ended_well:
        foreign_cores = outcome.foreign_cores or 0.0
        needed = threads_needed(outcome.result) if outcome.result else 0
        spare_cores = max(0.0, cores - needed)
        busy.append(foreign_cores)
        taken.append(foreign_cores - spare_cores)
        gpu += [card.foreign or 0.0 for card in outcome.cards]
        stolen.append(outcome.stolen or 0.0)
    return Foreign(max(busy), cores, max(gpu), min(1.0, max(taken)), max(stolen))


def threads_needed(result: RunResult) -> int:
    """Return how many threads of a run compute; one of each process feeds a GPU."""
    return result.world_size * (result.threads_per_process if result.devices[0] == "cpu" else 1)


@dataclass(frozen=True)
class Trial:
    """A row's attempt to train with some batch. status, reason: as in Outcome.

    images: how many it trained on in TRIAL_STEPS steps; peak_bytes: of the device that needed most. Both are None if
    the batch does not fit, or the trial failed for another reason.
    """

    configuration: str
    batch_size: int
    status: str
    reason: str
    images: int | None = None
    peak_bytes: int | None = None

    @property
    def fits(self) -> bool:
        """Whether memory sufficed, even if training diverged or missed a target accuracy."""
        return self.images is not None
