"""One rank's share of an epoch of training or of an evaluation, and those of all ranks as one record."""

from dataclasses import dataclass, field, replace

from common.files.results import EpochRecord, PhaseTimes, RankTimes


@dataclass(frozen=True)
class Training:
    """One rank's share of one epoch of training: seconds, sums over its images, milliseconds per phase.

    cpu_seconds, queue_seconds: see CoreClock. start: when it began, by time.monotonic(); None if in another run.
    """

    data_rank: int
    seconds: float = 0.0
    loss_sum: float = 0.0
    samples: int = 0
    steps: int = 0
    phase_milliseconds: dict[str, float] = field(default_factory=dict)
    cpu_seconds: float = 0.0
    queue_seconds: float | None = None
    start: float | None = None

    def after(self, earlier: "Training") -> "Training":
        """Return an epoch's second part with the times of the first, which another run did; sums have both already."""
        phases, before = self.phase_milliseconds, earlier.phase_milliseconds
        queued = [part.queue_seconds for part in (earlier, self) if part.queue_seconds is not None]
        return replace(
            self,
            seconds=earlier.seconds + self.seconds,
            phase_milliseconds={name: before.get(name, 0.0) + phases.get(name, 0.0) for name in {**before, **phases}},
            cpu_seconds=earlier.cpu_seconds + self.cpu_seconds,
            queue_seconds=None if self.queue_seconds is None else sum(queued),
            start=None,
        )


@dataclass(frozen=True)
class Evaluation:
    """One rank's share of one evaluation: seconds, sum of losses, correct and all images per class."""

    data_rank: int
    seconds: float
    loss_sum: float
    correct: list[int]
    counts: list[int]


def merge(epoch: int, trainings: list[Training], evaluations: list[Evaluation]) -> EpochRecord:
    """Return one record for all ranks: sums of counts, the times of the slowest rank, and of each."""
    ranks = tuple(RankTimes(part.seconds, _phases(part), part.cpu_seconds, part.queue_seconds) for part in trainings)
    slowest = max(trainings, key=lambda part: part.seconds)
    start, evaluate_seconds = trainings[0].start, max(part.seconds for part in evaluations)
    trainings, evaluations = once_each(trainings), once_each(evaluations)
    samples = sum(part.samples for part in trainings)
    tested = sum(sum(part.counts) for part in evaluations)
    return EpochRecord(
        epoch=epoch,
        train_seconds=slowest.seconds,
        evaluate_seconds=evaluate_seconds,
        samples=samples,
        steps=slowest.steps,
        train_loss=sum(part.loss_sum for part in trainings) / samples,
        test_loss=sum(part.loss_sum for part in evaluations) / tested,
        test_accuracy=sum(sum(part.correct) for part in evaluations) / tested,
        phases=_phases(slowest),
        ranks=ranks,
        start=start,
    )


def _phases(part):
    times = PhaseTimes(**{name: total / part.steps for name, total in part.phase_milliseconds.items()})
    return times if None in (times.transfer, times.forward, times.backward) else replace(times, rest=None)


def once_each(parts: list) -> list:
    """Return of all ranks' Trainings or Evaluations one for each share of the data: the last rank's that sees it."""
    return list({part.data_rank: part for part in parts}.values())
