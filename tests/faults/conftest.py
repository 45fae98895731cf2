"""Every test here injects a fault. FAULTS_JSON=FILE keeps the results, for docs/reliability.md."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from common.errors import SuiteError
from common.files.writing import write_json
from tests.fixtures import PROJECT

FOUND = []


def pytest_runtest_logreport(report):
    group, name = Path(report.nodeid.partition("::")[0]).stem, report.nodeid.partition("::")[2]
    if report.when == "call" and Path(report.fspath).parent.name == "faults" and not report.skipped:
        group = group.removeprefix("test_").replace("_", " ")
        told = [json.loads(value) for key, value in report.user_properties if key == "fault"]
        unheard = {"fault": name, "exit_code": None, "message": "", "seconds": None}
        FOUND.extend({"group": group, **fault, "handled": report.passed} for fault in told or [unheard])


def pytest_sessionfinish():
    if "FAULTS_JSON" in os.environ and FOUND:
        write_json({"faults": FOUND}, os.environ["FAULTS_JSON"])


@pytest.fixture
def keep(record_property):
    """Keep what was said of a fault: its exit code, its message, and the seconds from the fault to the report."""

    def keep(fault, exit_code, message, seconds):
        message = re.sub(r"(/\w[^\s:;,]*)?/pytest-of-\w+/[^\s/]+/[^\s/]+", "TMP", message)
        message = message.replace(sys.executable, "PYTHON").replace(str(PROJECT), "PROJECT")
        found = {"fault": fault, "exit_code": exit_code, "message": message, "seconds": seconds}
        record_property("fault", json.dumps(found))

    return keep


@pytest.fixture
def injected(tmp_path):
    """injected(fault, rank, epoch): the environment in which a rank does that to itself at the start of an epoch."""

    def injected(fault, rank=0, epoch=1):
        where = {"FAULT_RANK": str(rank), "FAULT_EPOCH": str(epoch), "FAULT_TIME": str(tmp_path / "time")}
        return {"PYTHONPATH": str(Path(__file__).parent / "injected"), "FAULT": fault, **where}

    return injected


@pytest.fixture
def reported(keep):
    """Assert that a script ended with this exit code and one line on stderr that says this."""

    def reported(fault, done, exit_code, message):
        lines = done.stderr.splitlines()
        keep(fault, done.returncode, lines[-1] if lines else "", done.seconds)
        assert done.returncode == exit_code, done.stderr
        assert len(lines) == 1 and lines[0].startswith("error: "), done.stderr
        assert message in lines[0]

    return reported


@pytest.fixture
def rejected(project, reported):
    """Run a command that must end so; return its result. The fault is named after the command by default."""

    def rejected(command, exit_code, message, *flags, fault="", **options):
        done = project(command, *flags, **options)
        reported(fault or " ".join(map(str, (command, *flags))), done, exit_code, message)
        return done

    return rejected


@pytest.fixture
def refused(keep):
    """`with refused(fault, exit_code, part, …):` what is inside raises a SuiteError that says this."""

    @contextlib.contextmanager
    def refused(fault, exit_code, *parts):
        start = time.perf_counter()
        with pytest.raises(SuiteError) as caught:
            yield
        keep(fault, caught.value.exit_code, f"error: {caught.value}", time.perf_counter() - start)
        assert caught.value.exit_code == exit_code
        for part in parts:
            assert part in str(caught.value)

    return refused


@pytest.fixture
def mounted():
    """mounted(how, what, where): what to put in front of a command for which `mount how what where` was done."""
    unshare = ["unshare", "--user", "--map-root-user", "--mount"]
    if not shutil.which("unshare") or subprocess.run([*unshare, "true"], capture_output=True).returncode:
        pytest.skip("this system lets nobody mount something for one command (unshare)")
    script = 'mount $1 "$2" "$3" && shift 3 && exec "$@"'
    return lambda how, what, where: [*unshare, "sh", "-c", script, "sh", how, str(what), str(where)]


@pytest.fixture
def small_disk(mounted):
    """small_disk(size, directory): what to put in front of a command for which `directory` is a disk of that size."""
    return lambda size, directory: mounted(f"-t tmpfs -o size={size}", "tmpfs", directory)
