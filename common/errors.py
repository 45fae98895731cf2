"""Failures that a person can act on: one line on stderr, and an exit code that names the kind."""

import os
import signal
import sys

from common.lifetime import end_with_parent

FAILED, USAGE, MACHINE, DATA = 1, 2, 3, 4


class SuiteError(Exception):
    """A failure with its cause and remedy: `SuiteError(what, found, advice, exit_code)`.

    exit_code: FAILED (a run failed), USAGE (bad arguments), MACHINE (hardware or a package is
    missing) or DATA (data missing or damaged).
    """

    def __init__(self, what: str, found: str, advice: str, exit_code: int):
        super().__init__("; ".join(" ".join(part.split()) for part in (what, found, advice)))
        self.exit_code = exit_code


def run_script(main) -> None:
    """Call `main()`; on failure print one `error:` line and exit with its code (see SuiteError).

    `--debug` on the command line lets the traceback through instead. A rank ends with its launcher.
    """
    if "RANK" in os.environ:
        end_with_parent()
    try:
        main()
        sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader has seen enough, as in `| head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter's last flush complains
        sys.exit(128 + signal.SIGPIPE)
    except Exception as error:
        if "--debug" in sys.argv:
            raise
        rank = os.environ.get("RANK", "0")
        where = "" if rank == "0" else f"rank {rank}: "
        if not isinstance(error, SuiteError):
            error = SuiteError(f"unexpected {type(error).__name__}", str(error) or "no message",
                               "add --debug to see where it happened", FAILED)
        print(f"error: {where}{error}", file=sys.stderr, flush=True)
        sys.exit(error.exit_code)
