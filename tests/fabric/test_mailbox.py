"""Messages over MPI, as workers come and go: each pair keeps to its first communicator."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fabric.test_mpi import over_mpi

MAIL = """
import os
import sys
from collections import deque
import numpy as np
from spotmpi.fabric import KEY
from spotmpi.fabric.mpi.asks import _Message
from spotmpi.fabric.mpi.calls import MPI
from spotmpi.fabric.mpi import mailbox as mails
from spotmpi.fabric.mpi.mailbox import Mailbox, _Incoming
from spotmpi.fabric.retired import QUIET
from tests.fabric.ending import end

KEYS = [bytes([number]) * KEY for number in range(2)]
SIZES = [3, 20_000, 5 << 20]
LENT = [(), (1 << 17, 0, 5), (70_000,), (0,)]
world = MPI.COMM_WORLD
me = world.Get_rank()
near = sys.argv[1] == "sm"
if sys.argv[3] == "cut":
    mails._NEAR = 100_000
mailbox = Mailbox(me, lambda worker: near)

class Retired:
    def __init__(self):
        self.comms = []

    def add(self, *comms):
        self.comms += comms

retired = Retired()

def forget():
    with mailbox.resting():
        mailbox.forget([0, 1], retired)

def post(to, first):
    for number, size in enumerate(SIZES, first):
        for lent in LENT:
            parts = [np.full(many, number, np.uint8) for many in (size, *lent)]
            mailbox.post(to, KEYS[number % 2], parts[0], parts[1:])

def come(sender, first):
    global near
    kept = []
    near = not near  # whether they are neighbours is decided by who posts
    for number, size in enumerate(SIZES, first):
        for lent in LENT:
            while (message := mailbox.take([sender], KEYS[number % 2])) is None:
                os.sched_yield()
            assert message.sender == sender
            kept.append((number, size + sum(lent), np.frombuffer(message.content, np.uint8)))
    near = not near
    for number, size, content in kept:  # no later one is in the same memory
        assert content.size == size and (content == number).all()

# Workers 0 and 1 begin, and post while worker 2 comes.
old = world.Split(me // 2, me)
if me < 2:
    mailbox.enter(mailbox.furnish(old, [0, 1]))
    post(1 - me, 2)
path = mailbox.furnish(world.Split(0, me), [0, 1, 2])
both = path.comm
mailbox.enter(path)
assert mailbox.furnish(both, [0, 1, 2]) is None, "nobody is new"
others = [other for other in range(3) if other != me]
for other in others:
    post(other, 4)
if me < 2:
    come(1 - me, 2)
for other in others:
    come(other, 4)
world.Barrier()
# Who computes calls no MPI, and what it has posted arrives all the same.
came = f"{sys.argv[2]}/came"
if me == 0:
    post(1, 10)
    while not os.path.exists(came):
        pass
if me == 1:
    come(0, 10)
    open(came, "w").close()
world.Barrier()
# Worker 2 is gone; what it needed goes, what is under way to another one does not.
if me < 2:
    post(1 - me, 6)
    while not retired.comms:
        forget()
    post(2, 8)
    come(1 - me, 6)
    forget()
    assert retired.comms == [both]
    assert not mailbox._come, "what was taken leaves nothing"
    # A message whose sender dies in the middle of it is none. What of it is on the line may still
    # come: its memory and its request stay, and MPI is not asked by Test, which would free it.
    class Broken:
        def Get_status(self):
            return False
        def Test(self):
            raise MPI.Exception(MPI.ERR_PROC_FAILED)
    assert not _Message(world, Broken(), None).through(), "so for models that come"
    def broken():
        return _Incoming(memoryview(bytearray(KEY + 3)), deque([Broken()]))
    mailbox._incoming[1 - me] = broken()
    assert mailbox.take([1 - me], bytes(KEY)) is None
    assert mailbox._incoming.keys() == {1 - me}
    mailbox._incoming[2] = broken()
    del mailbox._incoming[1 - me]
    forget()
    mailbox.post(me, bytes(KEY), np.zeros(3, np.uint8))
    assert not mailbox._incoming and len(mailbox._stale._kept) == 1
    since, *message = mailbox._stale._kept.pop()
    mailbox._stale._kept.append((since - QUIET - 1, *message))
    mailbox.post(me, bytes(KEY), np.zeros(3, np.uint8))
    assert not mailbox._stale._kept
    mailbox.post(me, KEYS[0], np.zeros(3, np.uint8))
    mailbox.move_on()
    assert mailbox.take([me], KEYS[0]) is None, "it is of an earlier training"
else:
    assert mailbox.take([0, 1], KEYS[0]) is None
world.Barrier()
print("CAME", me, flush=True)
end(world)
"""


@pytest.mark.parametrize("transport", ["sm", pytest.param("tcp", marks=pytest.mark.matrix)])
@pytest.mark.parametrize("cut", [pytest.param("whole", marks=pytest.mark.matrix), "cut"])
def test_messages_find_their_way_as_workers_come_and_go(
    tmp_path: Path, transport: str, cut: str
) -> None:
    said = over_mpi(tmp_path, 3, "-c", MAIL, transport, str(tmp_path), cut, transport=transport)
    assert said.count("CAME") == 3, said


PIECES = """
import numpy as np
from spotmpi.fabric import KEY
from spotmpi.fabric.mpi import mailbox as mails
from spotmpi.fabric.mpi.calls import Path
from spotmpi.fabric.planes.travels import MESSAGE

class Request:
    left = False
    def Get_status(self):
        return self.left
    def Test(self):
        return True

class Comm:
    sent, sizes = [], []
    def Issend(self, what, rank, tag):
        self.sizes.append(len(what[0]))
        self.sent.append(Request())
        return self.sent[-1]
    Isend = Issend

comm, lost = Comm(), []
mails.is_lost = lambda rank, comm: rank in lost
mails.threads = lambda: threads
mails.Messenger.start = lambda self: None
threads, room, number = True, mails._AHEAD, 3 * mails._AHEAD
content = np.zeros(number * MESSAGE - mails._HEAD, np.uint8)

mailbox = mails.Mailbox(0, lambda worker: worker == 2)
mailbox.enter(Path(comm, [0, 1, 2]))
mailbox.post(1, bytes(KEY), content)
assert comm.sizes == room * [MESSAGE], "MPI would send more in parts"
for request in comm.sent[:5]:
    request.left = True
mailbox._clear()
assert comm.sizes == (room + 5) * [MESSAGE], "as many as have left"
mailbox.post(2, bytes(KEY), content)
assert comm.sizes.pop() == number * MESSAGE, "a neighbour gets it whole"
comm.sent.pop().left = True
lost.append(1)
mailbox._clear()
assert not mailbox._outgoing, "nothing is under way to a lost worker for ever"
assert len(mailbox._stale._kept) == room, "but MPI may still read there"

lost.clear()
threads = False
mailbox.post(1, bytes(KEY), content)
assert len(comm.sent) == room + 5 + number, "nobody would send the others"

comm.sent.clear()
threads = True
started = []
mails.Messenger.start = lambda self: started.append(self)
mailbox = mails.Mailbox(0, lambda worker: True)
mailbox.enter(Path(comm, [0, 1]))
mailbox.post(1, bytes(KEY), content[:10])
assert not started, "it leaves at once"
comm.sent.pop().left = True
mailbox.post(1, bytes(KEY), content)
assert started
assert mailbox._look_for_messages() == (False, False), "a neighbour may be about to read it"
assert mailbox._look_for_messages() == (False, True), "it has not"
comm.sent.pop().left = True
mailbox.post(1, bytes(KEY), content)
assert mailbox._look_for_messages() == (False, False), "it has, and there is another one"
comm.sent.pop().left = True
assert mailbox._look_for_messages() == (False, False)
assert not mailbox._outgoing
print("SENT", flush=True)
"""


def test_between_hosts_a_large_message_leaves_in_pieces_and_a_few_at_a_time(tmp_path: Path) -> None:
    assert "SENT" in over_mpi(tmp_path, 1, "-c", PIECES)


WOKEN = """
from types import SimpleNamespace as Other
from spotmpi.errors import PeersLost
from spotmpi.fabric import KEY, Receive
from spotmpi.fabric.mpi.fabric import MpiFabric

rings, asked = iter(range(100_000)), []

def broken():
    asked.append(next(rings))
    return len(asked) > 3

bell = Other(wait=lambda seconds: next(rings) >= 0)
mailbox = Other(take=lambda senders, key: None)
fabric = MpiFabric.__new__(MpiFabric)
fabric._paths = Other(mailbox=mailbox, control=Other(doorbell=bell), broken=broken)
try:
    fabric.perform(Receive([1], bytes(KEY)))
except PeersLost:
    print("LOST", flush=True)
assert asked[0] > 10, "whoever is woken looks for the message first"
"""


def test_who_is_woken_again_and_again_without_its_message_finds_losses(tmp_path: Path) -> None:
    assert "LOST" in over_mpi(tmp_path, 1, "-c", WOKEN)
