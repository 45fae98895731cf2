"""The lock of the directory that a comparison writes to."""

import contextlib
import os
from pathlib import Path

from filelock import FileLock, Timeout

from common.errors import USAGE, SuiteError

ELSEWHERE = "name another directory with --output-dir"


class DirectoryLock(contextlib.AbstractContextManager):
    """Locks a directory during the `with`, so that only one comparison writes to it.

    Raises SuiteError (USAGE) if another process has locked it.
    """

    def __init__(self, directory: Path):
        self.directory, self._file = directory, directory / ".comparison.lock"

    def __enter__(self) -> "DirectoryLock":
        self._lock()
        return self

    def check(self) -> None:
        """If the directory was moved or deleted, lock that path again.

        Raises SuiteError (USAGE) if another comparison has begun to write to it meanwhile.
        """
        with contextlib.suppress(OSError):
            if os.path.samestat(self._file.stat(), self._locked):
                return
        self._lock_file.release()
        self._lock()
        if (self.directory / "results.json").exists():
            what = f"{self.directory} was moved or deleted, and another comparison has written to it"
            raise SuiteError(what, "its results.json is that of the other one", ELSEWHERE, USAGE)

    def __exit__(self, *_) -> None:
        self._lock_file.release()

    def _lock(self):
        self.directory.mkdir(parents=True, exist_ok=True)
        self._lock_file = FileLock(self._file, timeout=0)
        try:
            self._lock_file.acquire()
        except Timeout:
            what = f"another comparison is writing to {self.directory}"
            raise SuiteError(what, "its lock is held", f"wait for it, or {ELSEWHERE}", USAGE) from None
        self._locked = self._file.stat()
