"""Exit codes and messages of real jobs whose workers really end in every way there is."""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path

import pytest

from spotmpi.launch.wording import typed
from tests.running import unnamed

SCRIPTS = Path(__file__).parent / "scripts"
TRAINING = SCRIPTS / "training.py"


@pytest.mark.matrix
def test_a_script_that_never_trains_just_runs(run_spotmpi, tmp_path) -> None:
    (tmp_path / "hello.py").write_text("print('hello')")
    done = run_spotmpi(["run", "-n", "3", "hello.py"])
    assert sorted(done.stdout.splitlines()) == ["[0] hello", "[1] hello", "[2] hello"]
    assert (done.returncode, done.stderr) == (0, "")


def test_junk_in_a_worker_s_channel_is_said_once_and_harms_nobody(run_spotmpi, tmp_path) -> None:
    (tmp_path / "junk.py").write_text(
        "import os\n"
        "from spotmpi.settings import Settings\n"
        'for junk in (b\'\\x1b[2J\', b\'{}\', b\'{"event": "left", "code": "many"}\'):\n'
        "    os.write(Settings.from_environ().channel_fd, junk)\n"
        "print('done')\n"
    )
    done = run_spotmpi(["run", "-n", "2", "junk.py"])
    assert (done.returncode, unnamed(done.stdout)) == (0, "done\n" * 2)
    lines = done.stderr.splitlines()
    assert len(lines) == 2
    assert all("channel to the launcher that is left out (it is no JSON)" in one for one in lines)


@pytest.mark.matrix
def test_workers_that_train_finish(run_spotmpi) -> None:
    done = run_spotmpi(["run", "-n", "3", "--name", "all", TRAINING])
    assert done.returncode == 0, done.stderr
    expected = [f"[{worker}] worker {worker} trained with 3" for worker in range(3)]
    assert sorted(done.stdout.splitlines()) == expected
    assert done.stderr == (
        "spotmpi: job spotmpi-all: 3 workers on 1 host train\n"
        "spotmpi: checkpoint of step 20 written to somewhere/step-20\n"
    )


@pytest.mark.parametrize("deed", ["kill", "term"])
@pytest.mark.first("kill")
def test_survivors_go_on_without_a_revoked_worker(run_spotmpi, deed: str) -> None:
    done = run_spotmpi(["run", "-n", "3", TRAINING, f"{deed}:1@5"])
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("recovered") == 2
    assert "worker 0 trained with 2" in done.stdout
    told = done.stderr.splitlines()
    # In any order: each worker, and the wrapper of the dead one, says its part by itself.
    checkpoint, recovered, revoked = sorted(told[1:-1])
    assert checkpoint == "spotmpi: checkpoint of step 20 written to somewhere/step-20"
    assert f"was revoked (SIG{deed.upper()}); 2 of 3 workers remain" in revoked
    assert recovered.startswith("spotmpi: recovered from the loss of worker 1 at step 5 in ")
    assert recovered.endswith(" ms: 2 of 3 workers remain (retry, generation 1)")
    assert told[-1] == "spotmpi: 2 workers finished, 1 was revoked"


@pytest.mark.matrix
def test_losing_all_but_one_still_ends_well(run_spotmpi) -> None:
    done = run_spotmpi(["run", "-n", "4", TRAINING, "kill:0@3", "kill:1@3", "kill:3@9"])
    assert done.returncode == 0, done.stderr
    assert "worker 2 trained with 1" in done.stdout


@pytest.mark.matrix
def test_losing_everybody_is_code_69(run_spotmpi) -> None:
    done = run_spotmpi(["run", "-n", "2", TRAINING, "kill:all@4"])
    assert done.returncode == 69
    assert "every worker was revoked" in done.stderr


@pytest.mark.parametrize("who", ["1", "all"])
@pytest.mark.parametrize("moment", ["start", "begun", "ready", "5", "done"])
@pytest.mark.first("5-all")
def test_an_exception_ends_the_job_and_is_shown_once(run_spotmpi, who: str, moment: str) -> None:
    done = run_spotmpi(["run", "-n", "3", TRAINING, f"raise:{who}@{moment}"])
    assert done.returncode == 1
    assert "recovered" not in done.stdout
    assert done.stderr.count("Traceback (most recent call last)") == 1
    assert done.stderr.count("ValueError: planted in worker") == 1
    assert 'in fail\n    raise ValueError(f"planted' in done.stderr
    assert "runpy" not in done.stderr
    assert "\nspotmpi: worker " in "\n" + done.stderr
    assert done.stderr.splitlines()[-1].startswith("spotmpi: the script failed on worker ")


@pytest.mark.parametrize(
    ("deed", "sentence"),
    [
        ("exit3", "ended with code 3"),
        ("crash", "died by SIGSEGV"),
        ("sigabrt", "died by SIGABRT"),
        ("sigint", "ended with code 130"),
        ("exit0", "ended early"),
        ("message", "a planted message"),
        ("abort", "MPI_ABORT was invoked on rank 1"),
    ],
)
@pytest.mark.first("crash-died by SIGSEGV")
def test_a_bug_ends_the_job_before_anybody_recovers(run_spotmpi, deed: str, sentence: str) -> None:
    done = run_spotmpi(["run", "-n", "3", TRAINING, f"{deed}:1@5"])
    assert done.returncode == 1, done.stderr
    assert "recovered" not in done.stdout
    assert sentence in done.stderr
    assert "fix the script" in done.stderr.splitlines()[-1]
    if deed == "crash":  # where the script was
        assert "Segmentation fault" in done.stderr
        assert 'training.py", line' in done.stderr


@pytest.mark.parametrize("moment", ["start", "begun"])
@pytest.mark.first("begun")
def test_leaving_without_training_while_others_do_is_a_bug(run_spotmpi, moment: str) -> None:
    done = run_spotmpi(["run", "-n", "3", TRAINING, f"exit0:1@{moment}"])
    assert done.returncode == 1
    assert "worker 1 on" in done.stderr
    assert "ended early" in done.stderr


@pytest.mark.parametrize("moment", ["start", "begun"])
@pytest.mark.parametrize("who", ["1", "all"])
@pytest.mark.first("1-begun")
def test_deaths_before_each_start_end_the_job(run_spotmpi, moment: str, who: str) -> None:
    done = run_spotmpi(["run", "-n", "3", TRAINING, f"kill:{who}@{moment}"])
    assert done.returncode == 71
    assert done.stderr.count("was lost (SIGKILL) before all workers were ready") == 4
    assert done.stderr.count("starting again") == 3
    assert done.stderr.splitlines()[-1] == (
        "spotmpi: 4 times in a row workers were lost before all were ready: the job is not "
        "started again; see what kills them"
    )


def test_a_death_after_the_training_is_a_revocation(run_spotmpi) -> None:
    done = run_spotmpi(["run", "-n", "3", TRAINING, "kill:1@done"])
    assert done.returncode == 0
    assert "worker 1" in done.stderr


@pytest.mark.matrix
def test_stopped_workers_make_the_job_end_with_75(run_spotmpi) -> None:
    done = run_spotmpi(["run", "-n", "3", TRAINING, "kill:0@5", "exit75:all@10"])
    assert done.returncode == 75
    assert "--resume" in done.stderr.splitlines()[-1]


@pytest.mark.matrix
def test_a_bug_weighs_more_than_a_stop(run_spotmpi) -> None:
    done = run_spotmpi(["run", "-n", "3", TRAINING, "exit75:0@5", "raise:1@5"])
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
@pytest.mark.parametrize("moment", ["start", "done", "7"])
@pytest.mark.matrix
def test_a_signal_ends_everything(start, number: int, code: int, moment: str) -> None:
    running = start("run", "-n", 2, TRAINING, f"wait:all@{moment}")
    running.until("waits", times=2)
    os.kill(running.pid, number)
    assert running.wait() == code
    assert f"spotmpi: {typed(number)}: the job was ended" in running.output


@pytest.mark.matrix
def test_a_signal_that_was_ignored_from_the_start_stays_ignored(start) -> None:
    running = start("run", "-n", 2, TRAINING, "wait:0@start", ignore=(signal.SIGINT,))
    running.until("waits")
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(running.pid, number)
    assert running.wait() == 143


def test_the_script_has_the_arguments_and_the_place_that_python_would_give(
    run_spotmpi, tmp_path: Path
) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "neighbour.py").write_text("")
    (tmp_path / "below" / "script.py").write_text(
        "import os, stat, sys\n"
        "import neighbour\n"
        "assert __name__ == '__main__'\n"
        "assert stat.S_ISCHR(os.fstat(0).st_mode) and os.read(0, 1) == b''\n"
        "print(sys.argv, os.getcwd())\n"
    )
    arguments = ["--help", "-n", "5", "--", ":", "ü", "--", "a b", ""]
    done = run_spotmpi(["run", "-n", "1", "--", "below/script.py", *arguments])
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"[0] {['below/script.py', *arguments]} {tmp_path}\n"


@pytest.mark.matrix
def test_lines_of_many_workers_are_never_mixed(run_spotmpi, tmp_path: Path) -> None:
    (tmp_path / "talk.py").write_text(
        "import os, sys\n"
        "me = os.environ['OMPI_COMM_WORLD_RANK']\n"
        "for i in range(200):\n"
        "    print(me * 50, end='')\n"
        "    sys.stdout.flush()\n"
        "    print(me * (i * 97 % 9000))\n"
        "    print(me * 70, file=sys.stderr)\n"
        "sys.stdout.write('the end, without a newline')\n"
    )
    done = run_spotmpi(["run", "-n", "4", "talk.py"])
    assert done.returncode == 0
    named = [line.partition(" ") for line in done.stdout.splitlines()]
    lines = [line for _, _, line in named]
    assert lines.count("the end, without a newline") == 4
    assert len(lines) == 804
    assert all({name, *line} == {name, name[1]} for name, _, line in named if line[0] != "t")
    expected = sorted(50 + i * 97 % 9000 for i in range(200) for _ in range(4))
    assert sorted(len(line) for line in lines if not line.startswith("the end")) == expected
    errors = sorted(f"[{worker}] " + str(worker) * 70 for worker in range(4) for _ in range(200))
    assert sorted(done.stderr.splitlines()) == errors


@pytest.mark.matrix
def test_what_users_register_for_the_exit_runs(run_spotmpi, tmp_path: Path) -> None:
    (tmp_path / "leave.py").write_text(
        "import atexit, threading\n"
        "atexit.register(print, 'at exit')\n"
        "def later(): threading.Event().wait(0.1); print('from a thread')\n"
        "threading.Thread(target=later).start()\n"
    )
    done = run_spotmpi(["run", "-n", "1", "leave.py"])
    assert done.stdout == "[0] from a thread\n[0] at exit\n"


@pytest.mark.matrix
def test_an_exception_in_a_process_that_the_script_forked_is_the_scripts_business(
    run_spotmpi, tmp_path: Path
) -> None:
    (tmp_path / "fork.py").write_text(
        "import os\n"
        "if os.fork() == 0:\n"
        "    raise ValueError('in the child')\n"
        "print('child:', os.WEXITSTATUS(os.wait()[1]))\n"
    )
    done = run_spotmpi(["run", "-n", "2", "fork.py"])
    assert (done.returncode, unnamed(done.stdout)) == (0, "child: 1\n" * 2)
    assert done.stderr.count("ValueError: in the child") == 2


@pytest.mark.matrix
def test_a_job_within_a_job_is_a_job_of_its_own(run_spotmpi, tmp_path: Path) -> None:
    (tmp_path / "outer.py").write_text(
        "import subprocess, sys\n"
        f"inner = [sys.executable, '-m', 'spotmpi', 'run', '-n', '2', {str(TRAINING)!r}]\n"
        "sys.exit(subprocess.run(inner).returncode)\n"
    )
    done = run_spotmpi(["run", "-n", "1", "outer.py"])
    assert done.returncode == 0, done.stderr
    assert "worker 1 trained with 2" in done.stdout


def test_nothing_of_a_job_can_be_seen_by_others(start) -> None:
    running = start("run", "-n", 2, TRAINING, "wait:all@done")
    running.until("waits", times=2)
    environ = Path(f"/proc/{running.wrappers[0]}/environ").read_bytes().split(b"\0")
    (folder,) = (v.partition(b"=")[2] for v in environ if v.startswith(b"SPOTMPI_JOB_DIR="))
    path = Path(folder.decode())
    assert path.stat().st_mode & 0o777 == 0o700
    assert (path / "launcher").stat().st_mode & 0o777 == 0o600
    assert list(path.glob("sm_segment.*")), "MPI's shared memory belongs there"
    os.kill(running.pid, signal.SIGTERM)
    assert running.wait() == 143
    assert not path.exists()


def impatient(start, names: str, *arguments: object):
    """A job whose launcher waits for half a second only where ``names`` of `job` say so."""
    program = (
        "import sys; from spotmpi.cli import main; from spotmpi.launch.head import job\n"
        f"for name in {names.split()}: setattr(job, name, 0.5)\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    return start(*arguments, command=["-c", program])


@pytest.mark.matrix
def test_workers_that_do_not_follow_one_that_stopped_are_ended(start) -> None:
    job = ["run", "-n", 2, TRAINING, "exit75:0@7"]
    running = impatient(start, "_FOR_STOPPING", *job)
    assert running.wait() == 75
    assert "others went on for" in running.output


@pytest.fixture
def false_mpirun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts a program on PATH that passes for an mpirun with ULFM."""

    def install(text: str) -> None:
        facts = f"ompi:version:full:5.9\npath:prefix:{tmp_path}\noptions:ft_mpi_support:yes"
        for name, body in (("mpirun", text), ("ompi_info", f"echo '{facts}'")):
            program = tmp_path / "bin" / name
            program.parent.mkdir(exist_ok=True)
            program.write_text(f"#!/bin/sh\n{body}\n")
            program.chmod(0o755)
        (tmp_path / "lib").mkdir()
        (tmp_path / "lib" / "libmpi.so.40").touch()
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")

    return install


@pytest.mark.matrix
def test_an_mpirun_that_fails_is_quoted(run_spotmpi, false_mpirun) -> None:
    false_mpirun("echo 'There are not enough slots'; exit 1")
    done = run_spotmpi(["run", "-n", "2", TRAINING])
    assert done.returncode == 71
    assert "mpirun said:\nThere are not enough slots" in done.stderr
    assert done.stderr.splitlines()[-1] == (
        "spotmpi: mpirun failed before all workers were ready; "
        "`spotmpi doctor` checks the installation"
    )


@pytest.mark.matrix
def test_an_mpirun_that_does_nothing_is_given_up(start, false_mpirun) -> None:
    false_mpirun("exec sleep 1000")
    running = impatient(start, "_FOR_START _FOR_MPIRUN", "run", "-n", 1, TRAINING)
    assert running.wait() == 71
    assert "mpirun did not start all workers in time" in running.output


@pytest.mark.matrix
def test_a_reader_that_goes_away_does_not_end_the_training(start, tmp_path: Path) -> None:
    script = tmp_path / "talk.py"
    script.write_text("for i in range(100_000): print(i)\nopen('finished', 'w').close()")
    running = start("run", "-n", 1, script)
    running.until(r"^\[0\] 5$")
    running.stop_reading()
    assert running.wait() == 0
    assert (tmp_path / "finished").exists()


@pytest.mark.parametrize("who", ["launcher", "agent"])
@pytest.mark.matrix
def test_a_launcher_or_an_agent_that_sleeps_costs_nobody_on_one_host(start, who: str) -> None:
    """Ctrl-Z, say: between the two lies nothing that could break without their noticing."""
    running = start("run", "-n", 2, "--detect-ms", 20, TRAINING, "wait:0@7")
    running.until("waits")
    sleeper, other = running.pid, running.agent
    if who == "agent":
        sleeper, other = other, sleeper
    os.kill(sleeper, signal.SIGSTOP)
    descriptor = os.pidfd_open(other)
    assert not select.select([descriptor], [], [], 0.5)[0], "the other gave up"
    os.close(descriptor)
    os.kill(sleeper, signal.SIGCONT)
    os.kill(running.pid, signal.SIGTERM)
    assert running.wait() == 143
    assert "was revoked" not in running.output


@pytest.mark.matrix
def test_many_workers_may_need_more_open_files_than_a_process_usually_has(start, tmp_path) -> None:
    script = tmp_path / "hello.py"
    script.write_text("print('hello')")
    program = (
        "import resource, sys; from spotmpi.cli import main\n"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (40, hard))\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    running = start("run", "-n", 10, script, command=["-c", program])
    assert running.wait() == 0, running.output
    assert unnamed(running.output) == "hello\n" * 10
