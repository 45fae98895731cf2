"""Failures that a person can act on: what went wrong, what was found, what to type next."""

import contextlib
import re
import signal

FAILED, USAGE, MACHINE, DATA = 1, 2, 3, 4
OUT_OF_MEMORY = "out of memory"  # what an error line begins with, behind its place, and what a run's status then is
NO_MEMORY = "OutOfMemoryError|out of memory|allocate memory|ALLOC_FAILED|ALLOCATION_FAILED|unable to find an engine"
INTERRUPTED, READER_GONE = 128 + signal.SIGINT, 128 + signal.SIGPIPE


class SuiteError(Exception):
    """A failure with its cause and remedy: `SuiteError(what, found, advice, exit_code)`.

    exit_code: FAILED (a run), USAGE (bad arguments), MACHINE (lacks hardware or a package), DATA (missing or damaged).
    """

    def __init__(self, what: str, found: str, advice: str, exit_code: int):
        super().__init__("; ".join(" ".join(part.split()) for part in (what, found, advice)))
        self.exit_code = exit_code


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory did not suffice: on a GPU, on a CPU, or in a library that reports it in its own words.

    PyTorch's allocator raises a plain RuntimeError on a CPU ("can't allocate memory"), as cuBLAS and cuDNN do on a GPU.
    cuDNN finds no engine for a convolution where memory does not suffice for the workspace of any.
    """
    said = f"{type(error).__name__}: {error}"
    return isinstance(error, MemoryError) or bool(re.search(NO_MEMORY, said))


@contextlib.contextmanager
def suppress_out_of_memory():
    """Go on behind the `with` where memory did not suffice in it."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise


@contextlib.contextmanager
def add_error_context(where: str):
    """Let the line about an error that passes through name `where` it happened, e.g. "epoch 2"."""
    try:
        yield
    except Exception as error:
        error.add_note(where)
        raise


def describe_exit(code: int) -> str:
    """Return a process's exit code in words; code -n stands for signal n, as in subprocess."""
    if code >= 0:
        return f"exit code {code}"
    hint = ", probably out of memory" if code == -signal.SIGKILL else ""
    return f"signal {-code} ({signal.Signals(-code).name}){hint}"
