"""The epochs of a run where TensorBoard reads them (`tensorboard --logdir DIR`), if that package is installed."""

from pathlib import Path
from typing import Any

from common.files.results import EpochRecord


class EpochLog:
    """The TensorBoard log in a directory. Its file is made with the first epoch that is added."""

    def __init__(self, directory: str | Path) -> None:
        self._directory = str(directory)
        self._writer: Any = None

    def add(self, record: EpochRecord) -> None:
        """Write an epoch; of those that an earlier run left in the directory, the same and later ones are hidden."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(self._directory, purge_step=record.epoch)
        for name, value in (
            ("loss/train", record.train_loss),
            ("loss/test", record.test_loss),
            ("accuracy/test", record.test_accuracy),
            ("time/seconds", record.train_seconds),
            ("time/images per second", record.samples / record.train_seconds),
        ):
            self._writer.add_scalar(name, value, record.epoch)
        self._writer.flush()
