"""Errors that the user can act on: what failed, what was found, what to type next."""

import contextlib
import errno
import re
import signal

FAILED, USAGE, MACHINE, DATA = 1, 2, 3, 4
OUT_OF_MEMORY = "out of memory"  # in an error line, after its place; also the status of such a run
NO_MEMORY = "OutOfMemoryError|out of memory|allocate memory|ALLOC_FAILED|ALLOCATION_FAILED|unable to find an engine"
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
LIMITS = {  # of the system, whatever the file
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "end other programs, or allow more open files (ulimit -n)"),
    errno.EAGAIN: "end other programs, or allow more processes (ulimit -u)",
}
INTERRUPTED, READER_GONE = 128 + signal.SIGINT, 128 + signal.SIGPIPE


class SuiteError(Exception):
    """A failure with its cause and remedy: `SuiteError(what, found, advice, exit_code)`.

    exit_code: FAILED (a run), USAGE (bad arguments), MACHINE (lacks hardware or a package), DATA (missing or damaged).
    """

    def __init__(self, what: str, found: str, advice: str, exit_code: int):
        super().__init__("; ".join(" ".join(part.split()) for part in (what, found, advice)))
        self.exit_code = exit_code


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory ran out, on a CPU or a GPU.

    PyTorch raises a plain RuntimeError if the CPU allocator ("can't allocate memory"), cuBLAS or cuDNN fail. cuDNN
    reports that it is unable to find an engine if there is too little memory for every convolution's workspace.
    """
    message = f"{type(error).__name__}: {error}"
    return isinstance(error, MemoryError) or bool(re.search(NO_MEMORY, message))


def remedy(error: BaseException, otherwise: str) -> str:
    """Return the advice about a limit of the system if that is the error, else `otherwise`, about the file."""
    return LIMITS.get(getattr(error, "errno", None) or 0, otherwise)


@contextlib.contextmanager
def suppress_out_of_memory():
    """Like contextlib.suppress(), for errors that mean that memory ran out."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise


@contextlib.contextmanager
def add_error_context(where: str):
    """Add a note, e.g. "epoch 2", to an exception raised inside the `with`; the error line shows it."""
    try:
        yield
    except Exception as error:
        error.add_note(where)
        raise


def describe_exit(code: int) -> str:
    """Return a process's exit code in words. As in subprocess, -n stands for signal n."""
    if code >= 0:
        return f"exit code {code}"
    hint = ", probably out of memory" if code == -signal.SIGKILL else ""
    return f"signal {-code} ({signal.Signals(-code).name}){hint}"
