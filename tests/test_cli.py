"""The command line: help with an example, and one clear sentence for what is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spotmpi import cli
from spotmpi.training.keeping.checkpoint_file import save
from tests.running import unnamed

COMMANDS = [command.name for command in cli._COMMANDS]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text("print('it ran')")
    return path


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str], flag: str) -> None:
    assert cli.main([flag]) == 0
    shown = capsys.readouterr().out
    assert all(f"\n  {name} " in shown for name in COMMANDS)
    assert "example" in shown


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_help_with_an_example(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main([name, "--help"])
    assert left.value.code == 0
    shown = capsys.readouterr().out
    assert f"usage: spotmpi {name}" in shown
    assert "example" in shown


HELP = "from spotmpi.cli import main; main(['--help'])"
LAUNCHER = "import spotmpi.launch.commands.run, spotmpi.launch.head.launching"
AGENT = "import spotmpi.launch.commands.agent, spotmpi.launch.host.agent"


@pytest.mark.parametrize("does", [HELP, LAUNCHER, AGENT], ids=["help", "launcher", "agent"])
def test_what_computes_nothing_imports_nothing_heavy(does: str) -> None:
    """A launcher with NumPy would start its workers later."""
    program = (
        f"import sys; {does}\n"
        "heavy = {'numpy', 'numba', 'h5py', 'mpi4py', 'matplotlib'}\n"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("words", [["doctor", "-n", "1"], ["plan", "--help"], ["--help"]])
def test_a_reader_that_has_enough_is_no_error(words: list[str]) -> None:
    """As `| head -3` is, when it has its lines."""
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as nobody:
        done = subprocess.run(
            [sys.executable, "-m", "spotmpi", *words],
            stdout=nobody,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_module_is_the_command(run_spotmpi) -> None:
    assert run_spotmpi(["--version"]).stdout.strip()
    done = run_spotmpi([])
    assert done.returncode == 2
    assert "commands:" in done.stderr
    done = run_spotmpi(["rnu"])
    assert done.returncode == 2
    assert done.stderr.startswith("spotmpi: there is no command 'rnu'\n")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["SCRIPT"], "give either -n N, for workers on this host, or --hosts FILE"),
        (["SCRIPT", "-n", "2"], "-n stands after the script, and so goes to the script: put optio"),
        (["SCRIPT", "x", "--hosts=f", "-n"], "before it, spotmpi run -n ... "),
        (["--listen", "[::1]:0", "--token-file", "f", "SCRIPT"], "--listen needs -n N: how many"),
        (["-n", "2"], "the script to run is missing"),
        (["-n", "0", "SCRIPT"], "-n 0: give a number of workers, 1 or more"),
        (["-n=-1", "SCRIPT"], "-n -1: give a number of workers"),
        (["-n", "two", "SCRIPT"], "-n two: give a number of workers"),
        (["-n", "2", "missing.py"], "there is no script missing.py"),
        (["-n", "2", "."], "there is no script ."),
        (["-n", "2", "-m"], "the script to run is missing"),
        (["-n", "2", "-m", "none.such", "x"], "there is no module none.such that can be run"),
        (["-m", "json.tool", "-n", "2"], "-n stands after the module, and so goes to the module"),
        (["-n", "2", "--unknown", "SCRIPT"], "unrecognized arguments: --unknown"),
        (["-n", "2", "--rev", "1@1", "SCRIPT"], "unrecognized arguments: --rev"),
        (["-n", "2", "--revoke", "2@5", "SCRIPT"], "there is no worker 2"),
        (["-n", "2", "--revoke", "1@-5", "SCRIPT"], "'1@-5' is not of the form"),
        (["-n", "2", "--revoke", "one", "SCRIPT"], "'one' is not of the form"),
        (["-n", "4", "--revoke", "1,1@5", "SCRIPT"], "worker 1 is named twice"),
        (["-n", "4", "--revoke", "1@5", "--revoke", "1@6", "SCRIPT"], "worker 1 is named twice"),
        (["-n", "2", "--min-workers", "0", "SCRIPT"], "--min-workers 0: give a number"),
        (["-n", "2", "--min-workers", "3", "SCRIPT"], "at least 3 workers are asked for"),
        (
            ["-n", "2", "--min-workers", "2", "SCRIPT"],
            "needs --checkpoint DIR (SPOTMPI_CHECKPOINT), to have something to resume from",
        ),
        (["-n", "2", "--resume", "SCRIPT"], "resuming needs --checkpoint DIR"),
        (["-n", "2", "--checkpoint-every", "5", "SCRIPT"], "needs --checkpoint DIR"),
        (
            ["-n", "2", "--checkpoint", "d", "--checkpoint-every", "x", "SCRIPT"],
            "--checkpoint-every x: give a number of steps",
        ),
        (["-n", "2", "--checkpoint", "SCRIPT/d", "SCRIPT"], "no file can be written in"),
        (["-n", "2", "--trace", "SCRIPT/t", "SCRIPT"], "no file can be written in"),
        (["-n", "2", "--checkpoint", "/proc/1", "SCRIPT"], "no file can be written in"),
        (["-n", "2", "--trace", ".", "SCRIPT"], "is a folder; name a file in it"),
        (["-n", "2", "--trace", "no/t", "SCRIPT"], "--trace no/t: there is no folder "),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(
    script: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        code = cli.main(["run", *(word.replace("SCRIPT", str(script)) for word in arguments)])
    except SystemExit as left:  # argparse's way
        code = left.code
    shown = capsys.readouterr()
    assert code == 2
    assert sentence in shown.err
    assert shown.err.count("\n") == 1
    assert shown.err.startswith("spotmpi run: ")
    assert shown.out == ""
    assert not (tmp_path / "no").exists()


def test_a_folder_with_an_earlier_runs_checkpoints_is_refused_before_anything_starts(
    run_spotmpi, script: Path, tmp_path: Path
) -> None:
    (tmp_path / "c").mkdir()
    save(tmp_path / "c", 8, {"steps": 8})
    done = run_spotmpi(["run", "-n", "2", "--checkpoint", "c", str(script)])
    assert done.returncode == 2
    assert "an earlier run, the last of step 8: go on from there" in done.stderr
    assert done.stderr.count("\n") == 1


def test_relative_places_are_meant_from_where_the_command_was_given(
    run_spotmpi, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(
        "from spotmpi.settings import Settings\n"
        "found = Settings.from_environ()\n"
        "print(found.trace, found.checkpoint, found.checkpoint_every, found.resume)\n"
        "print(found.min_workers, *found.revoke)\n"
    )
    (tmp_path / "t").mkdir()
    options = "--trace t/x.jsonl --checkpoint t/../c --checkpoint-every 7 --resume --min-workers 2"
    revoke = ["--revoke", "1@5", "--revoke", "0@6"]
    done = run_spotmpi(["run", "-n", "2", *options.split(), *revoke, "script.py"])
    assert done.returncode == 0, done.stderr
    expected = [f"{tmp_path}/t/x.jsonl {tmp_path}/c 7 False", "2 1@5 0@6"]
    assert sorted(unnamed(done.stdout).splitlines()) == sorted(expected * 2)
    assert list((tmp_path / "c").iterdir()) == []
