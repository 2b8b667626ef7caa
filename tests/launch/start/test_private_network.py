"""Other users of the host reach nothing of a job: neither its runtime nor its recovery."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from spotmpi.launch import pmix_relay
from spotmpi.launch.start import private_network
from tests.running import Running

TRAINING = Path(__file__).parents[1] / "scripts" / "training.py"
NOBODY = 65534
NEW_USERS = 0x10000000
MAY_BE_WATCHED = 4
LISTENING = "0A"


def below(running: Running) -> list[int]:
    """All processes of a job."""
    found = [running.pid]
    for pid in found:
        found += running.children(pid)
    return found


def listening(running: Running) -> list[tuple[str, int]]:
    """Addresses (as the kernel writes them) and ports at which a job can be reached from here.

    By UDP, too, whoever may be heard there.
    """
    held = set()
    for pid in below(running):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            held.update(re.findall(r"socket:\[(\d+)\]", os.readlink(link)))
    rows = [
        (table, line.split())
        for table in ("tcp", "tcp6", "udp", "udp6")
        for line in Path("/proc/net", table).read_text().splitlines()[1:]
    ]
    found = [
        row[1].split(":")
        for table, row in rows
        if row[9] in held and (row[3] == LISTENING or table.startswith("udp"))
    ]
    return [(address, int(port, 16)) for address, port in found]


def of_runtime(running: Running) -> dict[str, str]:
    """What MPI told the first worker's stand-in of itself."""
    lines = Path(f"/proc/{running.stand_ins[0]}/environ").read_text().split("\0")
    environ = dict(line.split("=", 1) for line in lines if "=" in line)
    return {name: value for name, value in environ.items() if name.startswith("PMIX_")}


def as_user(user: int, act: Callable[[], None]) -> int:
    """Start a process of another user's that does something; 0 is its exit code if it can."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(60)  # PMIx may wait for ever
            if user != os.getuid():
                os.setgroups([])
                os.setgid(user)
                os.setuid(user)
            act()
            code = 0
        finally:
            os._exit(code)
    return child


class Process(ctypes.Structure):
    """pmix_proc_t."""

    _fields_ = [("space", ctypes.c_char * 256), ("rank", ctypes.c_uint32)]


class Program(ctypes.Structure):
    """pmix_app_t."""

    _fields_ = [
        ("cmd", ctypes.c_char_p),
        ("argv", ctypes.POINTER(ctypes.c_char_p)),
        ("env", ctypes.c_void_p),
        ("cwd", ctypes.c_char_p),
        ("maxprocs", ctypes.c_int),
        ("info", ctypes.c_void_p),
        ("ninfo", ctypes.c_size_t),
    ]


def spawn(pmix: ctypes.CDLL, environ: dict[str, str], claimed: tuple[int, int], file: Path) -> None:
    """Say to a job's runtime that one is its first worker, and have it make a file."""
    if (os.getuid(), os.getgid()) != claimed:  # in a namespace of one's own one may have any id
        ids = list(zip(("uid", "gid"), (os.getuid(), os.getgid()), claimed, strict=True))
        assert ctypes.CDLL(None).prctl(MAY_BE_WATCHED, 1) == 0  # else its /proc is root's
        assert ctypes.CDLL(None).unshare(NEW_USERS) == 0
        Path("/proc/self/setgroups").write_text("deny")
        for kind, own, other in ids:
            Path(f"/proc/self/{kind}_map").write_text(f"{other} {own} 1")
    os.environ.update(environ, TMPDIR="/tmp", HOME="/tmp")
    assert pmix.PMIx_Init(ctypes.byref(Process()), None, ctypes.c_size_t(0)) == 0
    words = (ctypes.c_char_p * 3)(b"touch", os.fsencode(file), None)
    program = Program(b"/usr/bin/touch", words, None, b"/", 1, None, 0)
    space = ctypes.create_string_buffer(256)
    one = ctypes.c_size_t(1)
    assert pmix.PMIx_Spawn(None, ctypes.c_size_t(0), ctypes.byref(program), one, space) == 0


@pytest.mark.matrix
def test_nobody_else_has_a_job_run_what_he_likes(start, tmp_path: Path) -> None:
    running = start("run", "-n", 2, TRAINING, "wait:all@7")
    running.until("waits", times=2)
    maps = Path(f"/proc/{running.mpirun}/maps").read_text()
    pmix = ctypes.CDLL(re.findall(r"\S+/libpmix\.so\S*", maps)[0])
    environ = of_runtime(running)
    real = pmix_relay.server_port(environ)
    assert real is not None
    ports = [port for _, port in listening(running)]
    me = os.getuid(), os.getgid()

    def attack(user: int, port: int, file: Path) -> bool:
        said = pmix_relay.with_port(environ, port)
        child = as_user(user, lambda: spawn(pmix, said, me, file))
        return os.waitpid(child, 0)[1] == 0

    for port in {real, *ports}:
        assert not attack(NOBODY, port, tmp_path / "theirs")
    # The job's own user may: this is what others try.
    assert any(attack(me[0], port, tmp_path / "mine") for port in ports)
    os.kill(running.pid, signal.SIGTERM)
    assert running.wait() == 143
    assert not (tmp_path / "theirs").exists()


@pytest.mark.parametrize("where", ["one host", "an agent"])
def test_whoever_begins_to_say_something_and_stops_holds_up_nobody(
    start, tmp_path: Path, where: str
) -> None:
    (tmp_path / "hosts").write_text("localhost slots=3\n")
    place = ["-n", 3] if where == "one host" else ["--hosts", tmp_path / "hosts"]
    running = start("run", *place, TRAINING, "wait:1@7")
    running.until("worker 1 waits")
    real = pmix_relay.server_port(of_runtime(running))
    assert real is not None
    # (Across hosts MPI listens at ports of its own.)
    ports = [port for _, port in listening(running)] if where == "one host" else []
    told, tells = os.pipe()
    ended, ends = os.pipe()

    def hold() -> None:
        signal.alarm(0)
        links = []
        for port in {real, *ports}:
            link = socket.socket()
            if link.connect_ex(("127.0.0.1", port)) == 0:
                link.send(b"\0")
                links.append(link)
        os.write(tells, b".")
        os.close(ends)
        os.read(ended, 1)

    child = as_user(NOBODY, hold)
    assert os.read(told, 1) == b"."
    (victim,) = (
        pid
        for wrapper in running.wrappers
        for pid in running.children(wrapper)
        if b"OMPI_COMM_WORLD_RANK=1" in Path(f"/proc/{wrapper}/environ").read_bytes().split(b"\0")
    )
    os.kill(victim, signal.SIGKILL)
    try:
        assert running.wait() == 0
    finally:
        for descriptor in (told, tells, ended, ends):
            os.close(descriptor)
        os.waitpid(child, 0)
    assert running.output.count("recovered\n") == 2


def test_a_job_on_one_host_listens_on_no_network(start) -> None:
    running = start("run", "-n", 2, TRAINING, "wait:all@7")
    running.until("waits", times=2)
    found = listening(running)
    assert {address for address, _ in found} == {"0100007F"}, "the agent's, for its workers"
    network = [os.readlink(f"/proc/{pid}/ns/net") for pid in (os.getpid(), running.mpirun)]
    assert network[0] != network[1]
    for wrapper in running.wrappers:  # a script may need a network
        assert os.readlink(f"/proc/{wrapper}/ns/net") == network[0]
    os.kill(running.pid, signal.SIGTERM)
    assert running.wait() == 143


SERVES = """\
import socket
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
listener.accept()[0].sendall(b"inside")
listener.accept()[0].sendall(b"again")
"""

TRIES = """\
import os, socket, subprocess, sys
from spotmpi.launch.start import private_network as fence
network = fence.erect()
assert not network.why, network.why
before = os.readlink("/proc/self/ns/net")
server = subprocess.Popen(
    [sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE, preexec_fn=network.enter
)
network.holds(server.pid)
port = int(server.stdout.readline())
outside = socket.socket()
assert outside.connect_ex(("127.0.0.1", port)) != 0
for _ in range(100):
    network.socket().close()
for said in (b"inside", b"again"):
    with network.socket() as link:
        link.connect(("127.0.0.1", port))
        assert link.recv(10) == said
assert os.readlink("/proc/self/ns/net") == before
assert server.wait() == 0
assert server.stdout.close() is None and outside.close() is None
made = subprocess.Popen(["/bin/touch", sys.argv[2]], preexec_fn=network.enter)
assert made.wait() == 0 and os.stat(sys.argv[2]).st_uid == os.getuid()
network.close()
print("all well")
"""


@pytest.mark.parametrize("capable", [True, False])
def test_only_who_is_handed_a_socket_gets_through_a_fence(tmp_path: Path, capable: bool) -> None:
    """Without the capability a namespace of users has to be made first."""
    without = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
    command = [sys.executable, "-c", TRIES, SERVES, str(tmp_path / "made")]
    done = subprocess.run(
        command if capable else [*without, *command],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("all well\n", "")


def test_without_a_child_in_it_a_fence_hands_out_nothing() -> None:
    with pytest.raises(OSError, match="no socket could be made"):
        private_network.Fence().socket()


@pytest.fixture
def refused(tmp_path: Path) -> list[str]:
    """What to put before a command to run it where no namespace can be made.

    The kernel lets nobody make one of users who has another root folder than the host.
    """
    (tmp_path / "root").mkdir()
    steps = 'mount --rbind / "$0" && exec chroot "$0" sh -c \'cd "$0" && exec "$@"\' "$PWD" "$@"'
    without = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
    return ["unshare", "--mount", "sh", "-c", steps, str(tmp_path / "root"), *without]


def test_where_no_fence_can_be_had_a_job_runs_all_the_same_and_says_who_can_get_in(
    refused: list[str], tmp_path: Path
) -> None:
    spotmpi = [*refused, sys.executable, "-m", "spotmpi"]
    with subprocess.Popen(["sleep", "1000"], user=23456, group=23456, cwd="/") as other:
        try:
            done = subprocess.run(
                [*spotmpi, "run", "-n", "2", TRAINING, "kill:1@5"],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
                cwd=tmp_path,
            )
        finally:
            other.kill()
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("recovered") == 1
    said = done.stderr.splitlines()[0]
    assert "user 23456 can run commands as you while this job runs: mpirun gets no network" in said
    told = subprocess.run([*spotmpi, "doctor"], capture_output=True, text=True, check=False)
    assert "can run commands as you: mpirun gets no network of its own" in told.stdout


def test_other_users_of_the_host_are_known_by_their_processes() -> None:
    assert "user 23456" not in private_network.neighbours()
    with subprocess.Popen(["sleep", "1000"], user=23456, group=23456, cwd="/") as other:
        try:
            assert "user 23456" in private_network.neighbours()
        finally:
            other.kill()


@pytest.mark.matrix
def test_a_fence_that_can_be_had_no_more_ends_the_job_in_peace(start) -> None:
    program = (
        "import sys; from spotmpi.cli import main\n"
        "from spotmpi.launch.start import private_network as fence\n"
        "class Late(fence.Fence):\n"
        "    def enter(self): raise OSError('no space left')\n"
        "fence.erect = Late\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    running = start("run", "-n", 1, TRAINING, command=["-c", program])
    assert running.wait() == 71
    assert "a network for mpirun could not be made" in running.output
