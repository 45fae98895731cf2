"""What another program left in the environment, and values that are none, are ignored or refused; nothing is left."""

from functools import partial

import pytest

import compare_parallel
from common.errors import USAGE, SuiteError
from common.machine.environment import command_line
from common.machine.turns import TURNS, Turns
from common.ranks.start import parse_flags
from common.settings.arguments import memory
from common.settings.config import parse, script_parser


def test_turns_that_nobody_gives_are_not_waited_for(monkeypatch, tmp_path):
    monkeypatch.setenv(TURNS, str(tmp_path / "gone"))
    turns = Turns(0, 1)
    turns.wait()
    assert turns.waited_seconds == 0


@pytest.mark.parametrize("ranks, program", [("", "python "), ("4", "torchrun --nnodes=2 --nproc_per_node=4 ")])
def test_a_run_id_that_is_left_over_is_no_torchrun(ranks, program, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "left")
    for name, value in (("GROUP_WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", ranks)):
        monkeypatch.setenv(name, value) if ranks else monkeypatch.delenv(name, raising=False)
    assert command_line().startswith(program)


def test_a_run_leaves_nothing_and_does_not_mind_what_others_left(project, tmp_path):
    (tmp_path / "temporary").mkdir()
    left = {
        "TORCHELASTIC_RUN_ID": "left",
        "TORCHELASTIC_ERROR_FILE": "/gone/file",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        TURNS: "/gone",
        "TMPDIR": str(tmp_path / "temporary"),
    }
    done = project("ddp_train.py", "--spawn", 2, "--no-curves", "--figure-dir", tmp_path, environment=left)
    assert done.returncode == 0, done.stderr
    assert [*(tmp_path / "temporary").iterdir()] == []


@pytest.mark.parametrize("amount", ["1e308GiB", "1e300", "8388608TiB", "inf", "9223372036854775808"])
def test_no_amount_of_memory_is_too_large_to_be_refused(amount):
    with pytest.raises(Exception, match="needs an amount of memory"):
        memory(amount)
    assert memory("2GiB") == 2**31


COMPARE, DDP = compare_parallel.parse, partial(parse_flags, "", {})


@pytest.fixture
def type_in(monkeypatch, tmp_path):
    """type_in(*flags): what is read from the command line from now on."""
    (tmp_path / "fine").mkdir()
    fine = ("script.py", "--figure-dir", str(tmp_path / "fine"))
    return lambda *flags: monkeypatch.setattr("sys.argv", [*fine, *map(str, flags)])


@pytest.mark.parametrize(
    "main, flag", [(COMPARE, "--output-dir"), (COMPARE, "--epochs"), (DDP, "--epochs"), (DDP, "--save")]
)
def test_two_dashes_are_no_value(main, flag, monkeypatch):
    monkeypatch.setattr("sys.argv", ["script.py", f"{flag}=--"])
    with pytest.raises(SuiteError, match=f"argument {flag}: needs a value, found '--'") as raised:
        main()
    assert raised.value.exit_code == USAGE


def test_what_is_no_file_is_refused_by_its_flag(type_in, tmp_path):
    type_in("--save", tmp_path)
    with pytest.raises(SuiteError, match="it is a directory; name a file instead with --save"):
        parse(script_parser(""))


@pytest.mark.parametrize("flag", ["--figure-dir", "--save", "--output", "--checkpoint", "--tensorboard"])
def test_a_path_that_cannot_be_written_is_refused_by_its_flag(flag, type_in, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("common.settings.config.check_tensorboard", lambda: None)
    type_in(flag, tmp_path / "file" / "below" / "x")
    with pytest.raises(SuiteError, match=f"{tmp_path / 'file'}.* with {flag}"):
        parse(script_parser(""))
