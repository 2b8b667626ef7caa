"""What only the fabric over MPI can get wrong: what MPI keeps, and what it does not grant."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from spotmpi.launch.start import installation, mpirun
from spotmpi.settings import Settings
from tests.fabric.planes import PLANES

SOAK = Path(__file__).with_name("soak.py")
TORN = Path(__file__).with_name("torn.py")
LIMIT = 100


def over_mpi(
    folder: Path, workers: int, *program: str, code: int | None = 0, transport: str = "sm"
) -> str:
    """What these say under mpirun, which uses this folder and ends with this code, if any."""
    found = installation.search(os.environ).found
    assert found is not None, installation.NO_MPI
    settings = Settings(job_dir=folder)
    loopback = {**os.environ, "OMPI_MCA_btl_tcp_if_include": "lo"}
    environ = mpirun.environment(found, workers, settings, loopback, 1, transport)
    done = subprocess.run(
        mpirun.command(found, workers, [sys.executable, *program]),
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=LIMIT,
        text=True,
        check=False,
    )
    assert code in (None, done.returncode), done.stdout + done.stderr
    return done.stdout if code is not None else done.stdout + done.stderr


def test_a_worker_does_not_grow_with_its_generations(tmp_path: Path) -> None:
    """10 KB for each, as long as communicators were not freed; over 180 generations."""
    grew = [float(kb) for kb in re.findall(r"GREW (\S+)", over_mpi(tmp_path, 4, str(SOAK), "200"))]
    assert len(grew) == 4
    assert max(grew) < 2, grew


@pytest.mark.parametrize("how", ["ring", "straight", "given", "bf16", "int8"])
@pytest.mark.matrix
def test_workers_of_several_hosts_are_killed_in_the_middle_of_sums(
    tmp_path: Path, how: str
) -> None:
    """Over TCP, as between real hosts: there MPI sends at once what the rings send."""
    program = str(TORN), str(tmp_path), "3", "seed", how
    said = over_mpi(tmp_path, 5, *program, code=None, transport="tcp")
    rounds = [int(file.read_text()) for file in tmp_path.glob("*.done")]
    assert len(rounds) == 2, said
    assert min(rounds) >= 4 * 4


ELSEWHERE = """
import os, sys
import numpy as np
from spotmpi.bench.measuring.sums import summed
from spotmpi.fabric import Depart, Rebuild, Shape, Share
from spotmpi.fabric.mpi import fabric as mpi
from tests.boxed import BOXED, boxes, unbox
from tests.fabric.planes import PLANES
mpi.PLANE = PLANES[sys.argv[1]]
fabric = mpi.MpiFabric()
with boxes():
    arena = fabric.arena([Shape("float32", 3, BOXED), Shape("float64", 70_000)], "both")
    ours, hosts = arena.contributions
    BOXED.from_host(ours, np.full(3, 10.0**fabric.me, np.float32))
    hosts[...] = fabric.me
    fabric.run(summed(arena.parts))
    print("SUM", *unbox(arena.results[0]).tolist(), arena.results[1].sum(), flush=True)
    BOXED.fill(arena.results[0], fabric.me)
    fabric.perform(Share(2, arena.results))
    print("SHARED", *unbox(arena.results[0]).tolist(), flush=True)
assert fabric.perform(Rebuild(frozenset(range(3)))).sealed  # nobody ends while others still share
fabric.perform(Depart())
os._exit(0)
"""


@pytest.mark.parametrize("plane", PLANES)
@pytest.mark.matrix
def test_arrays_that_mpi_cannot_read_go_by_the_memory_of_the_host(
    plane: str, tmp_path: Path
) -> None:
    """A wheel's MPI knows nothing of devices, and would read whatever lies at their addresses."""
    said = over_mpi(tmp_path, 3, "-c", ELSEWHERE, plane)
    assert said.count("SUM 111.0 111.0 111.0 210000.0\n") == 3, said
    assert said.count("SHARED 2.0 2.0 2.0\n") == 3, said


OF_ONE = """
import sys
import numpy as np
from spotmpi.bench.measuring.sums import summed
from spotmpi.fabric import Shape
from spotmpi.fabric.mpi import fabric as mpi
from spotmpi.fabric.mpi.calls import MPI
from tests.fabric.ending import end
from tests.fabric.planes import PLANES
mpi.PLANE = PLANES[sys.argv[1]]
fabric = mpi.MpiFabric()
for giver, size in enumerate([3, 70_001, 2_000_000]):  # alone on its host, and with a neighbour
    words = np.arange(size, dtype=np.uint32) * np.uint32(2654435761)  # NaN, -0 and all the others
    arena = fabric.arena([Shape("uint32", size)], f"words {size}")
    for turn in range(3):
        arena.bring_nothing()
        if fabric.me == giver:
            arena.weight = 1.0
            arena.contributions[0][:] = words + np.uint32(turn)
        fabric.run(summed(arena.parts))
        assert (arena.results[0] == words + np.uint32(turn)).all(), (giver, turn)
        arena.turn()
print("CAME", flush=True)
end(MPI.COMM_WORLD)
"""


@pytest.mark.parametrize("plane", PLANES)
@pytest.mark.first("Hosts")
def test_words_of_one_worker_come_to_all_whole(plane: str, tmp_path: Path) -> None:
    said = over_mpi(tmp_path, 3, "-c", OF_ONE, plane)
    assert said.count("CAME") == 3, said


QUEUED = """
import os, signal
import numpy as np
from spotmpi.errors import PeersLost
from spotmpi.fabric.deaths import Deaths
from spotmpi.fabric.mpi.calls import MPI, done
from spotmpi.fabric.mpi.line import MpiLine
from spotmpi.fabric.planes.travels import MESSAGE
from spotmpi.launcher_channel import Name

world = MPI.COMM_WORLD
world.Set_errhandler(MPI.ERRORS_RETURN)
pids = np.zeros(2, int)
world.Allgather(np.array([os.getpid()]), pids)
if world.Get_rank() == 1:
    os.kill(os.getpid(), signal.SIGSTOP)  # it takes nothing any more
line = MpiLine(lambda: (world, [0, 1]))
for _ in range(400):  # more than the kernel takes for it
    line.send(1, 0, np.zeros(MESSAGE, np.uint8))
tokens = [(world.Isend([b"token", MPI.BYTE], 1), b"token", world)]
Deaths().announce(Name(os.environ["PMIX_NAMESPACE"].encode(), 1))
try:
    while True:
        line.through()
except PeersLost:
    line.give_up()
tokens = [token for token in tokens if not done(token)]
print("GIVEN UP", flush=True)

def connections():
    descriptors = (f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd"))
    return sum(os.path.exists(one) and "socket" in os.readlink(one) for one in descriptors)

before = connections()
os.kill(pids[1], signal.SIGKILL)
while connections() == before:
    MPI.COMM_SELF.Iprobe()
while line._given_up or tokens:
    line.give_up()
    tokens = [token for token in tokens if not done(token)]
print("LET GO", flush=True)
os._exit(0)
"""


def test_what_waits_for_the_line_to_a_lost_worker_ends_nobody_when_the_line_breaks(
    tmp_path: Path,
) -> None:
    """A host that falls silent is lost long before its connections break: when it is back."""
    said = over_mpi(tmp_path, 2, "-c", QUEUED, code=None, transport="tcp")
    assert "GIVEN UP\nLET GO\n" in said, said


NEIGHBOURS = """
import os, signal, sys
from spotmpi.errors import PeersLost
from spotmpi.bench.measuring.sums import summed
from spotmpi.fabric import Cancel, Poll, Rebuild, Revoke, Shape
from spotmpi.fabric.mpi import fabric as mpi
from spotmpi.fabric.deaths import Deaths
from spotmpi.protocol.recovery import NO_PLAN, Lost

fabric = mpi.MpiFabric(bury=Deaths().announce)
arena = fabric.arena([Shape("float32", 5000)], "model")

def total():
    arena.contributions[0][:] = 1
    fabric.run(summed(arena.parts))
    found = arena.results[0].sum()
    arena.turn()
    return found

assert total() == 3 * 5000
if fabric.me == 2:
    os.kill(os.getppid(), signal.SIGSTOP)  # mpirun, which will tell nobody
    os.kill(os.getpid(), signal.SIGKILL)
try:
    total()
except PeersLost:
    fabric.perform(Revoke())
    fabric.perform(Cancel([]))
event = None
while event != Lost(frozenset({2})):
    event = fabric.perform(Poll())
built = fabric.perform(Rebuild(frozenset({0, 1}), NO_PLAN))
assert built.sealed, built
assert total() == 2 * 5000
print("WITHOUT 2", flush=True)
if fabric.me == 0:
    os.kill(os.getppid(), signal.SIGCONT)
os._exit(0)
"""


def test_neighbours_see_a_death_by_themselves_and_tell_their_mpi(tmp_path: Path) -> None:
    said = over_mpi(tmp_path, 3, "-c", NEIGHBOURS, code=None)
    assert said.count("WITHOUT 2\n") == 2, said


def test_who_dies_before_it_is_a_member_is_none_that_is_lost(tmp_path: Path) -> None:
    """A newcomer's neighbours have reached its memory when it dies, and are not connected yet."""
    program = (
        "import os\n"
        "from spotmpi.fabric.mpi.fabric import MpiFabric\n"
        "fabric = MpiFabric()\n"
        "fabric._plane.neighbours.dead = lambda: [7]\n"
        "print('LOST', sorted(fabric._paths.control._newly_dead()), flush=True); os._exit(0)"
    )
    assert over_mpi(tmp_path, 1, "-c", program) == "LOST []\n"


def test_no_newcomer_is_connected_if_mpi_was_not_started_for_threads(tmp_path: Path) -> None:
    """The thread that spawns it would call MPI beside the others."""
    program = (
        "import mpi4py, os; mpi4py.rc.thread_level = 'funneled'\n"
        "from spotmpi.fabric.mpi.fabric import MpiFabric\n"
        "print(MpiFabric(('/bin/false',)).sponsor(7), flush=True); os._exit(0)"
    )
    assert "MPI was not started with MPI_THREAD_MULTIPLE" in over_mpi(tmp_path, 1, "-c", program)


GUEST = """
import os, sys
from spotmpi.fabric import Welcome
from spotmpi.fabric.mpi import guests
from spotmpi.fabric.mpi.calls import MPI, take, peers_lost
from spotmpi.fabric.mpi.fabric import MpiFabric
from tests.fabric.ending import end

fabric = MpiFabric(("stand-in",))
bridge, both = (MPI.COMM_WORLD.Dup() for _ in range(2))
bridge.Set_errhandler(MPI.ERRORS_RETURN)
me, (what,) = fabric.me, sys.argv[1:]
# The sponsor's thread, once MPI has connected the newcomer.
guests.spawn = lambda guest, program, known: setattr(guest, "bridge", bridge)

def until(call):
    while not (found := call()):
        os.sched_yield()
    return found

def heard(tag):
    try:
        return until(lambda: take(bridge, 0, tag)).decode()
    except MPI.Exception as error:
        return type(peers_lost(error, bridge)).__name__

def briefed(asked=[]):
    fabric.brief(lambda: asked.append(7) or b"the way")
    return asked

if me == 0:  # the sponsor
    assert fabric.sponsor(7) is None
    assert fabric.guest() is None
    until(briefed)
    assert briefed() == briefed() == [7], "it is briefed once"
    assert fabric.guest() is None, "it has not knocked"
    both.Barrier()
    if what == "is admitted":
        assert until(fabric.guest) == fabric.guest() == 7
        fabric.perform(Welcome(7, b"briefing"))
        assert fabric.guest() is None, "it is one of the others now"
    if what == "is told of the next training":
        fabric.move_on()
        assert fabric.guest() is None, "it has knocked at the last one"
        assert briefed() == [7, 7]
        assert until(fabric.guest) == 7
        fabric.perform(Welcome(7, b"briefing"))
    if what == "is gone":
        until(lambda: fabric.guest() or fabric.sponsor(7))
        assert fabric.guest() is None
        print("SAID", fabric.sponsor(7), flush=True)
        os._exit(0)
    following = 8 if what == "is another" else None
    guests.spawn = lambda guest, program, known: None
    assert fabric.sponsor(following) is None
    if what == "is another":
        assert briefed() == [7], "nobody is there yet"
    assert fabric.guest() is None
    # What it was sent is forgotten before its bridge is freed.
    until(lambda: fabric.sponsor(following) or not fabric._guests._leaving)
else:
    print("HEARD", heard(guests.BRIEFING), flush=True)
    both.Barrier()
    if what in ("is admitted", "is told of the next training"):
        bridge.Send([b"1", MPI.BYTE], 0, guests.READY)  # to the first briefing
    if what == "is told of the next training":
        print("HEARD", heard(guests.BRIEFING), flush=True)
        bridge.Send([b"2", MPI.BYTE], 0, guests.READY)
    if what == "is gone":
        os.kill(os.getpid(), 9)
    print("HEARD", heard(guests.ADMITTED), flush=True)
both.Barrier()
print("REVOKED", bridge.Is_revoked(), flush=True)
end(both)
"""


@pytest.mark.parametrize(
    ("what", "heard", "revoked"),
    [
        ("is admitted", ["the way", "briefing"], False),
        ("is told of the next training", ["the way", "the way", "briefing"], False),
        ("is given up", ["the way", "PeersLost"], True),
        ("is another", ["the way", "PeersLost"], True),
    ],
)
def test_a_sponsor_s_newcomer(what: str, heard: list[str], revoked: bool, tmp_path: Path) -> None:
    """It is briefed once, and knocks; or it learns from the bridge that it is given up."""
    said = over_mpi(tmp_path, 2, "-c", GUEST, what)
    assert re.findall(r"^HEARD (.*)$", said, re.MULTILINE) == heard
    assert said.count(f"REVOKED {revoked}\n") == 2, said


BRIEFINGS = """
import os, sys
from spotmpi.fabric.mpi.calls import MPI
from spotmpi.fabric.mpi.guests import ADMITTED, BRIEFING, Arrival, Guest
from spotmpi.fabric.planes.travels import MESSAGE
from tests.fabric.ending import end

bridge = MPI.COMM_WORLD
sizes = [0, MESSAGE - 1, MESSAGE, MESSAGE + 1, 3 * MESSAGE]
said = [bytes([number]) * size for number, size in enumerate(sizes)]
if bridge.Get_rank() == 0:
    guest = Guest(bridge)
    for one in said:
        guest.send(one, BRIEFING)
    guest.send(said[-1], ADMITTED)
    assert guest.failure is None
    assert max(len(piece) for _, piece, _ in guest.sent) == MESSAGE
else:
    arrival = object.__new__(Arrival)
    arrival._bridge, arrival._pieces = bridge, {}
    for one in said:
        assert arrival._await(BRIEFING, 99) == (BRIEFING, one)
    assert arrival._await(99, ADMITTED) == (ADMITTED, said[-1])
    assert not arrival._pieces
print("CAME", flush=True)
end(bridge)
"""


def test_a_briefing_of_any_size_comes_whole(tmp_path: Path) -> None:
    assert over_mpi(tmp_path, 2, "-c", BRIEFINGS).count("CAME") == 2


def test_a_newcomer_that_dies_before_it_knocks_is_said_by_its_sponsor(tmp_path: Path) -> None:
    said = over_mpi(tmp_path, 2, "-c", GUEST, "is gone", code=None)
    assert re.findall(r"^HEARD (.*)$", said, re.MULTILINE) == ["the way"]
    assert "SAID MPI_ERR_PROC_FAILED" in said


FETCHING = """
import atexit, os, signal, sys, threading
from pathlib import Path
import numpy as np

atexit.register(lambda: print("LEFT", *(one.name for one in threading.enumerate()), flush=True))
from spotmpi.fabric import Fetch, Publish, Rebuild
from spotmpi.fabric.mpi import asks, models, fabric as mpi
from tests.fabric.planes import PLANES
if sys.argv[1] == "False":
    models.threads = lambda: False
mpi.PLANE = PLANES["Hosts"]  # worker 0 is alone on its host, and the others are neighbours
asks.PIECE = 8 << 10
fabric = mpi.MpiFabric()
model = np.zeros(100_000)
last = {}

def publish():
    model[:] = publish.number
    fabric.perform(Publish([model]))
    publish.number += 1

publish.number = 0

def fetch(worker):
    found = fabric.perform(Fetch(worker))
    if found is not None:
        assert (found.model[0] == found.number).all()
        assert found.number >= last.get(found.worker, 0)
        last[found.worker] = found.number
    return found

def until(worker):
    while (found := fetch(worker)) is None or found.worker != worker:
        os.sched_yield()

folder = Path(sys.argv[2])

def gather(where, count=3):
    # Goes on answering until all are here.
    written = folder / f"{fabric.me}.{where}.new"
    written.write_text(str(os.getpid()))
    written.rename(written.with_suffix(""))  # nobody reads half of it
    while len(list(folder.glob(f"*.{where}"))) < count:
        fetch((fabric.me + 1) % 2)

def from_all():
    publish()
    for other in {0, 1, 2} - {fabric.me}:
        until(other)

from_all()
gather("first")
publish()
gather("second")
if fabric.me == 2:
    os.kill(os.getpid(), signal.SIGSTOP)
    while len(list(folder.glob("*.seen"))) < 2:
        publish()
        fetch(0)
else:
    second = int((folder / "2.second").read_text())
    while Path(f"/proc/{second}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        os.sched_yield()
    for _ in range(1000):  # one that waits, waits for ever
        publish()
        fetch(2)
    if fabric.me == 1:
        assert last[2] == 1, "a neighbour's can be read although it is stopped"
    last.pop(1 - fabric.me)
    while 1 - fabric.me not in last:  # of the others, models come as ever
        publish()
        fetch(1 - fabric.me)
        os.sched_yield()
    gather("served", 2)
    if fabric.me == 0:
        os.kill(second, signal.SIGCONT)
    before = last.get(2, 0)
    while last.get(2, 0) <= before:
        publish()
        fetch(2)
        os.sched_yield()
    gather("seen", 2)
gather("third")

def built():
    assert fabric.perform(Rebuild(frozenset(range(3)))).sealed

built()
fabric.move_on()
built()
for _ in range(100):
    assert fabric.perform(Fetch((fabric.me + 1) % 3)) is None
built()
publish.number = 0
last.clear()
from_all()
gather("fourth")
print("DONE", *sorted(one.name for one in threading.enumerate()), flush=True)
"""


@pytest.mark.parametrize("threads", [True, False])
@pytest.mark.matrix
def test_who_is_stopped_costs_nobody_a_wait_and_what_it_published_can_be_fetched(
    threads: bool, tmp_path: Path
) -> None:
    """Between two hosts, also where MPI is for one thread only; then another training follows."""
    said = over_mpi(tmp_path, 3, "-c", FETCHING, str(threads), str(tmp_path), code=None)
    beside = " spotmpi models" if threads else ""
    assert said.count(f"DONE MainThread{beside}\n") == 3, said
    assert said.count("LEFT MainThread\n") == 3, said
