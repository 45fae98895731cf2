"""tests/fuzz.py detects each fault of a program, and reports none for a correct one."""

import pytest

from tests import fuzz
from tests.fixtures import PROJECT, alive, wait_until

PROGRAM = f"""
import os, shutil, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
output, wrong = sys.argv[sys.argv.index("--output") + 1], os.environ.get("WRONG", "pass")
result = "{PROJECT / "figures" / "mnist-lenet-single.json"}"
exec(wrong)
shutil.copy(result, output)
time.sleep(0.2)
"""
WRONG = {
    "sys.exit(7)": "exit code 7",
    "os.abort()": "exit code 134",
    "{}[0]": "a traceback",
    "sys.exit('error: unexpected KeyError; 0')": "an error that nobody expected",
    "sys.exit('error: one\\nerror: two')": "2 lines about one failure",
    "sys.exit(1)": "exit code 1 without a word",
    "result = result.replace('single', 'ddp-2')": "exit code 0, and other losses",
    "open(os.environ['TMPDIR'] + '/file', 'w')": "left behind: file",
    "open(output + '12345678.part', 'w')": "left behind: result.json12345678.part",
    "open(os.path.dirname(output) + '/notes.txt', 'a').write('more')": "changed: notes.txt",
    "subprocess.Popen(['sleep', '60'], start_new_session=True)": "processes are left",
    "time.sleep(60)": "no end within 2 s",
}


@pytest.fixture(scope="module")
def trials(tmp_path_factory):
    """A Fuzz that runs only PROGRAM."""
    directory = tmp_path_factory.mktemp("fuzz")
    (directory / "program.py").write_text(PROGRAM)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fuzz, "PROGRAMS", {"one device": (str(directory / "program.py"),)})
        patch.setattr(fuzz, "GONE_AFTER", 0.2)
        patch.setattr(fuzz, "MOST_SECONDS", 2)
        yield fuzz.Fuzz(directory)


@pytest.fixture
def place(trials):
    """The directory of a trial. Fails if the trial leaves anything behind."""
    yield trials.directory / "trial"
    trials.clean_up(trials.directory / "trial")
    assert not (trials.directory / "trial").exists()
    wait_until(lambda: not alive(trials.marker), seconds=10)


@pytest.mark.parametrize("wrong", WRONG)
def test_a_fault_is_found(wrong, trials, place):
    with pytest.raises(fuzz.FindingError) as found:
        trials.go_through(fuzz.Trial("one device", environment={"WRONG": wrong}), place)
    assert found.value.args[0] == WRONG[wrong]


@pytest.mark.parametrize("name, code", [("SIGTERM", 143), ("SIGKILL", 137), ("SIGSTOP", 0)])
def test_a_signal_is_not_a_fault(name, code, trials, place):
    ended = trials.go_through(fuzz.Trial("one device", (fuzz.Signal(name, 0.7, 0.0, 0.1),)), place)
    assert (ended.code, ended.sent) == (code, {name})


def test_a_trial_is_determined_by_its_number():
    drawn = [fuzz.draw(number, kills=False) for number in range(300)]
    assert drawn == [fuzz.draw(number, kills=False) for number in range(300)]
    assert {trial.program for trial in drawn} == {*fuzz.PROGRAMS}
    for part in ("signals", "flags", "environment"):
        assert 30 < sum(bool(getattr(trial, part)) for trial in drawn) < 250, part
    kills = [fuzz.draw(number, kills=True) for number in range(300)]
    assert {signal.name for trial in kills for signal in trial.signals} == {"SIGKILL"}
    assert not any(trial.flags or trial.environment for trial in kills)
