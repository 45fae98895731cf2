"""Logs of runs for TensorBoard (`tensorboard --logdir DIR`), if that package is installed."""

from pathlib import Path
from typing import Any

from common.files.results import EpochRecord


class EpochLog:
    """A TensorBoard log in a directory. The first epoch creates its file."""

    def __init__(self, directory: str | Path) -> None:
        self._directory = str(directory)
        self._writer: Any = None

    def add(self, record: EpochRecord) -> None:
        """Write an epoch. The first one hides this and later epochs that an earlier run left in the directory."""
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
