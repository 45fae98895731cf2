"""Every test here injects a fault. FAULTS_JSON=FILE writes the results for docs/reliability.md."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from common.errors import SuiteError
from common.files.writing import write_json
from tests.fixtures import PROJECT

FAULTS = []


def pytest_runtest_logreport(report):
    group, name = Path(report.nodeid.partition("::")[0]).stem, report.nodeid.partition("::")[2]
    if report.when == "call" and Path(report.fspath).parent.name == "faults" and not report.skipped:
        group = group.removeprefix("test_").replace("_", " ")
        recorded = [json.loads(value) for key, value in report.user_properties if key == "fault"]
        default = {"fault": name, "exit_code": None, "message": "", "seconds": None}
        FAULTS.extend({"group": group, **fault, "handled": report.passed} for fault in recorded or [default])


def pytest_sessionfinish():
    if "FAULTS_JSON" in os.environ and FAULTS:
        write_json({"faults": FAULTS}, os.environ["FAULTS_JSON"])


@pytest.fixture
def record_fault(record_property):
    """record_fault(fault, exit_code, message, seconds): record how a fault was reported, and how long after it."""

    def record_fault(fault, exit_code, message, seconds):
        message = re.sub(r"(/\w[^\s:;,]*)?/pytest-of-\w+/[^\s/]+/[^\s/]+", "TMP", message)
        message = message.replace(sys.executable, "PYTHON").replace(str(PROJECT), "PROJECT")
        record = {"fault": fault, "exit_code": exit_code, "message": message, "seconds": seconds}
        record_property("fault", json.dumps(record))

    return record_fault


@pytest.fixture
def injected():
    """injected(fault, rank, epoch): variables that make a rank evaluate the expression `fault` when an epoch begins."""

    def injected(fault, rank=0, epoch=1):
        planted = {"PLANT": "fault", "PLANT_FAULT": fault, "PLANT_RANK": str(rank), "PLANT_EPOCH": str(epoch)}
        return {"PYTHONPATH": str(PROJECT / "benchmarks" / "plants"), **planted}

    return injected


@pytest.fixture
def reported(record_fault):
    """reported(fault, done, exit_code, message): assert that a script printed one error line with this message."""

    def reported(fault, done, exit_code, message):
        lines = done.stderr.splitlines()
        record_fault(fault, done.returncode, lines[-1] if lines else "", done.seconds)
        assert done.returncode == exit_code, done.stderr
        assert len(lines) == 1 and lines[0].startswith("error: "), done.stderr
        assert message in lines[0]

    return reported


@pytest.fixture
def rejected(project, reported):
    """Run a command that must fail with one error line. Return its result. Its words are the default fault name."""

    def rejected(command, exit_code, message, *flags, fault="", **options):
        done = project(command, *flags, **options)
        reported(fault or " ".join(map(str, (command, *flags))), done, exit_code, message)
        return done

    return rejected


@pytest.fixture
def refused(record_fault):
    """with refused(fault, exit_code, *parts): assert that the body raises a SuiteError containing these parts."""

    @contextlib.contextmanager
    def refused(fault, exit_code, *parts):
        start = time.perf_counter()
        with pytest.raises(SuiteError) as caught:
            yield
        record_fault(fault, caught.value.exit_code, f"error: {caught.value}", time.perf_counter() - start)
        assert caught.value.exit_code == exit_code
        for part in parts:
            assert part in str(caught.value)

    return refused


@pytest.fixture
def short_directory():
    """A temporary directory whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


@pytest.fixture
def unshare():
    """unshare(*flags): a command prefix with namespaces of its own. Skips the test if the system forbids them."""

    def unshare(*flags):
        prefix = ["unshare", "--user", *flags]
        if not shutil.which("unshare") or subprocess.run([*prefix, "true"], capture_output=True).returncode:
            pytest.skip("this system does not allow namespaces (unshare)")
        return prefix

    return unshare


@pytest.fixture
def mounted(unshare):
    """mounted(how, what, where): the command prefix under which `mount how what where` is in effect."""
    prefix = unshare("--map-root-user", "--mount")
    script = 'mount $1 "$2" "$3" && shift 3 && exec "$@"'
    return lambda how, what, where: [*prefix, "sh", "-c", script, "sh", how, str(what), str(where)]


@pytest.fixture
def small_disk(mounted):
    """small_disk(size, directory): the command prefix under which `directory` is a disk of that size."""
    return lambda size, directory: mounted(f"-t tmpfs -o size={size}", "tmpfs", directory)
