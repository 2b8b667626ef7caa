"""What a worker tells its launcher, and what it can learn from it.

A worker under ``spotmpi run`` holds one end of a local socket (SOCK_SEQPACKET: a message arrives
whole or not at all) and tells its launcher where it is. One message is one line of JSON. Without
a launcher every call does nothing.

Events: ``runs`` (its process is there), ``begin`` (training is entered, before MPI starts),
``ready`` (the fabric is up), ``underway`` (a round is over, so that all were ready, even where that
is not known yet: what is said on several hosts arrives in any order), ``recovery``, ``checkpoint``,
``unsaved`` (the disk refuses one), ``not_finite`` (what is trained, since a step),
``ends_not_finite`` (what the training came to), ``unable`` (to begin, for no fault of its script),
``goes_on`` (it was to end, but nothing could be kept), ``unkept`` (training is over, and its end
could not be kept), ``done`` (training is sealed; ordinary code follows), ``failed`` (the script
raised; with its traceback) and ``left`` (it ends with this code); ``parted`` (it left the others on
request); ``misses`` (workers that MPI takes for dead, and of whose death nothing is known). Of a
newcomer: ``waiting`` (for what MPI must know), ``connected`` (with its sponsor), ``knocks``,
``admitted``, ``trains`` (it has learnt; these lead through `joining`), ``withdrawn`` (with the
reason why it cannot go on with the others); and of its sponsor ``spawning`` (it has asked MPI for
the newcomer) and ``gave_up`` (nothing will come of it).

What both need in every step goes through *boards*, files in the job folder: ``deaths``, ``orders``
(to workers), ``progress`` and ``busy`` (of workers), ``causes`` (why workers are gone). They cost a
microsecond or two and wake nobody up. Where workers are on several hosts ``names`` says as whom MPI
knew those that are dead (`Obituaries`).
"""

from __future__ import annotations

import json
import math
import os
import select
import socket
import struct
import time
import zlib
from collections.abc import Callable, Collection, Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from spotmpi.settings import Settings

__all__ = [
    "ADMISSION",
    "BOARDS",
    "Busy",
    "Cause",
    "DEATHS",
    "AT_MESSAGES",
    "IN_ROUND",
    "IN_SCRIPT",
    "LIMIT",
    "LISTENER",
    "JobBoard",
    "LauncherChannel",
    "Measured",
    "Name",
    "Obituaries",
    "Order",
    "Progress",
    "admit",
    "busy",
    "orders",
    "progress",
    "publish_cause",
    "publish_death",
    "record_death",
]

DEATHS = "deaths"
"""File in the job folder: a float64 per worker id, 0 or the monotonic second of its death."""

_ORDERS, _PROGRESS, _NAMES, _BUSY = "orders", "progress", "names", "busy"
_CAUSES = "causes"

BOARDS = (_ORDERS, _PROGRESS, _NAMES, _BUSY, _CAUSES)
"""Files in the job folder, empty at first: a `JobBoard` each."""

ADMISSION = "admission"
"""Named pipe in the job folder, one for each newcomer: what MPI must find in its environment."""

_BELL = "bell"
"""Socket in the job folder, one for each worker: rung when the names of dead ones are written."""

LISTENER = "launcher"
"""Name of the launcher's socket in the job folder."""

LIMIT = 65536
"""Longest message in bytes; what is longer is dropped by the receiver."""

_BEFORE_COMPLAINT = 3.0
"""Seconds for the launcher to find a death by itself; then it is told, and again ..."""

_BETWEEN_COMPLAINTS = 1.0
"""... after so long."""

_BETWEEN_LOOKS = 0.001
"""Seconds between two looks for a death that must come."""

PATIENCE = 5.0
"""Seconds that a worker waits for a launcher that does not read (a stopped terminal, say)."""

_MOST = (1 << 63) - 1
"""Of what is counted."""

_KIND, _WHY = 16, 232
"""Bytes of a cause that are kept: of its kind, and of its words."""

_ENTRY = struct.Struct("=d")
_CHECK = struct.Struct("=Q")

R = TypeVar("R", bound="tuple[Any, ...]")


class JobBoard(Generic[R]):
    """A file in the job folder with a record for each worker id; those not written are None.

    One process writes a record, any number read it, at any moment: a record of which only a part
    has been written is told by its check, and counts as none. Raises OSError where no job is.
    """

    def __init__(
        self, path: Path, layout: str, make: Callable[..., R], writing: bool = False
    ) -> None:
        flags = os.O_RDWR if writing else os.O_RDONLY
        self._descriptor = os.open(path, flags | os.O_CLOEXEC)
        self._body = struct.Struct(layout)
        self._size = self._body.size + _CHECK.size
        self._make = make

    def read(self, worker: int) -> R | None:
        """Return a worker's record."""
        entry = os.pread(self._descriptor, self._size, worker * self._size)
        if len(entry) < self._size:
            return None
        body = entry[: -_CHECK.size]
        if _CHECK.unpack_from(entry, self._body.size)[0] != zlib.crc32(body):
            return None  # also where all is zero
        return self._make(*self._body.unpack(body))

    def write(self, worker: int, record: tuple[Any, ...]) -> None:
        """Replace a worker's record. Raises OSError if there is no room."""
        body = self._body.pack(*record)
        os.pwrite(self._descriptor, body + _CHECK.pack(zlib.crc32(body)), worker * self._size)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._descriptor)


class Order(NamedTuple):
    """What a worker is to do, written by the launcher or its host's agent."""

    stop: bool = False
    """Stop together with all others at the next step boundary, with a checkpoint."""
    leave: bool = False
    """Leave at the next step boundary."""
    newcomer: int = 0
    """Bring this newcomer in, and give up any other; 0, which is no newcomer's id, means none."""


IN_SCRIPT, IN_ROUND, AT_MESSAGES = 1, 2, 3


class Measured(NamedTuple):
    """What a worker counts and measures while it trains; sums, from when it began."""

    whole: int = 0
    """Steps of the training in all, as far as the script's batches say; 0 if they do not."""
    samples: int = 0
    """Samples of all workers in the steps that are committed; 0 if they are of no batches."""
    computing: float = 0.0
    """Seconds in which its script has computed ..."""
    waiting: float = 0.0
    """... and in which it waited for rounds, or for the others in one ..."""
    stalled: float = 0.0
    """... of these, until the others went on whose membership had changed."""


_UNMEASURED = Measured()


class Progress(NamedTuple):
    """How far a worker has come, written by itself."""

    rounds: int
    """Committed."""
    steps: int
    """Committed."""
    doing: int
    """Since when it does what: IN_SCRIPT is its own affair, IN_ROUND it needs all others,
    AT_MESSAGES some of them."""
    since: float
    """``time.monotonic()`` of its host."""
    loss: float | None = None
    """The mean of the last step's, if the script gives one, and it is finite."""
    measured: Measured = _UNMEASURED


class Busy(NamedTuple):
    """What a worker's script says of itself while it is at work."""

    on: bool = False
    """It vouches for itself: it is at work, whatever its processes seem to do."""
    beats: int = 0
    """How often it has said so since; with the first it promises more of them."""
    what: bytes = b""
    """In UTF-8, 64 bytes at most."""


class Cause(NamedTuple):
    """Why a worker is gone, or is told to go."""

    kind: str
    """"killed", "crashed" (in MPI), "silent" or "reset" (its host), "unreachable", "stopped",
    "hung", "notice" or "asked"."""
    why: str
    """In the words of the launcher."""


class Name(NamedTuple):
    """As whom MPI, or rather PMIx, knows a worker."""

    space: bytes
    rank: int


def orders(folder: Path, writing: bool = False) -> JobBoard[Order]:
    """Open the board of orders in a job's folder."""
    return JobBoard(folder / _ORDERS, "=??q", Order, writing)


def progress(folder: Path, writing: bool = False) -> JobBoard[Progress]:
    """Open the board of progress in a job's folder."""
    return JobBoard(folder / _PROGRESS, "=QQQddQQddd", _progress, writing)


def busy(folder: Path, writing: bool = False) -> JobBoard[Busy]:
    """Open the board of what scripts say of themselves in a job's folder."""
    return JobBoard(folder / _BUSY, "=?Q64s", _busy, writing)


def _progress(
    rounds: int,
    steps: int,
    doing: int,
    since: float,
    loss: float,
    whole: int,
    samples: int,
    *seconds: float,
) -> Progress:
    # A script can write there, too: nothing impossible goes on from here.
    measured = Measured(
        min(whole, _MOST), min(samples, _MOST), *(one if 0 <= one < 1e9 else 0.0 for one in seconds)
    )
    return Progress(rounds, steps, doing, since, loss if math.isfinite(loss) else None, measured)


def _busy(on: bool, beats: int, what: bytes) -> Busy:
    return Busy(on, beats, what.rstrip(b"\0"))


def _causes(folder: Path) -> JobBoard[Cause]:
    return JobBoard(folder / _CAUSES, f"={_KIND}s{_WHY}s", _cause)


def _cause(kind: bytes, why: bytes) -> Cause:
    return Cause(*(text.rstrip(b"\0").decode(errors="replace") for text in (kind, why)))


def publish_cause(folder: Path, worker: int, cause: Cause) -> None:
    """Write why a worker is gone, or goes. For agents. Raises OSError."""
    path, layout = folder / _CAUSES, f"={_KIND}s{_WHY}s"
    kind, why = (text.encode(errors="replace") for text in cause)
    with closing(JobBoard(path, layout, lambda *both: both, writing=True)) as board:
        board.write(worker, (kind[:_KIND], why[:_WHY]))


def _names(folder: Path, writing: bool = False) -> JobBoard[Name]:
    return JobBoard(folder / _NAMES, "=256sI", _name, writing)


def _name(space: bytes, rank: int) -> Name:
    return Name(space.rstrip(b"\0"), rank)


class Obituaries:
    """Which workers are dead, on whatever host, for ``worker``. Raises OSError where no job is.

    For one reader. A ring wakes it to look; one too many costs a look.
    """

    def __init__(self, folder: Path, worker: int) -> None:
        self._board = _names(folder)
        self._address = str(folder / f"{_BELL}-{worker}")
        self._bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._bell.bind(self._address)

    def wait(self) -> None:
        """Block until something may have been written, for as long as it takes."""
        self._bell.recv(1)

    def ring(self) -> None:
        """Have whoever waits look again. Never blocks."""
        _ring(self._address)

    def of(self, worker: int) -> Name | None:
        """As whom MPI knew a worker; None while it lives, as far as is known."""
        return self._board.read(worker)

    def close(self) -> None:
        """Nobody waits any more; the end of the process does the same."""
        self._bell.close()
        self._board.close()


def publish_death(folder: Path, worker: int, name: Name, to: Iterable[int]) -> None:
    """Write whom MPI must take for dead, and wake those workers. For agents. Raises OSError."""
    with closing(_names(folder, writing=True)) as board:
        board.write(worker, name)
    for one in to:
        _ring(str(folder / f"{_BELL}-{one}"))


def _ring(address: str) -> None:
    # It is gone, or it has not come so far and looks by itself, or it is about to look.
    kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK
    with socket.socket(socket.AF_UNIX, kind) as link, suppress(OSError):
        link.sendto(b"", address)


class LauncherChannel:
    """The worker's end. Local; made by :meth:`open`."""

    def __init__(
        self,
        descriptor: int | None,
        job_dir: Path,
        deaths: int | None,
        orders: JobBoard[Order] | None = None,
        progress: JobBoard[Progress] | None = None,
        busy: JobBoard[Busy] | None = None,
    ) -> None:
        self._descriptor = descriptor
        self._folder = job_dir
        self._peer = str(job_dir / LISTENER)
        self._deaths = deaths
        self._orders = orders
        self._progress = progress
        self._busy = busy
        self._vouched = Busy()
        self._causes: JobBoard[Cause] | None = None
        self._told: set[tuple[str, int]] = set()

    @classmethod
    def open(cls, settings: Settings) -> LauncherChannel:
        """Take the channel that the settings name, or a mute one if there is none."""
        if settings.job_dir is None or settings.channel_fd is None:
            return cls(None, Path(), None)
        folder = settings.job_dir
        try:
            deaths = os.open(folder / DEATHS, os.O_RDONLY | os.O_CLOEXEC)
            boards = orders(folder), progress(folder, writing=True), busy(folder, writing=True)
        except OSError:
            return cls(None, Path(), None)  # the job is over, and this process no worker of it
        return cls(settings.channel_fd, folder, deaths, *boards)

    def close(self) -> None:
        """Let go of the boards: from now on nothing is told and nothing is known.

        The connection stays, which is the process's: it may tell how its script ends.
        """
        for board in (self._orders, self._progress, self._busy, self._causes):
            if board is not None:
                board.close()
        if self._deaths is not None:
            os.close(self._deaths)
        self._descriptor = self._deaths = None
        self._orders = self._progress = self._busy = self._causes = None

    @property
    def mute(self) -> bool:
        """Whether there is no launcher to tell anything."""
        return self._descriptor is None

    def tell(self, event: str, **fields: Any) -> None:
        """Send one event. Returns at once unless the launcher is stopped; never raises."""
        if self._descriptor is None:
            return
        message = json.dumps({"event": event, **fields}, default=str).encode()
        if len(message) >= LIMIT:
            message = json.dumps({"event": event}).encode()
        # A launcher that is gone is no error: this worker is about to be ended for it.
        with suppress(OSError):
            link = socket.socket(fileno=self._descriptor)
            try:
                # A program that the worker executes inherits the variable but not the descriptor,
                # and the number may mean some other socket by now.
                if link.getpeername() == self._peer and _writable(link):
                    link.send(message + b"\n", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            finally:
                link.detach()

    def tell_once(self, event: str, newcomer: int, **fields: Any) -> None:
        """Tell this of a newcomer, unless it was told."""
        if (event, newcomer) not in self._told:
            self._told.add((event, newcomer))
            self.tell(event, newcomer=newcomer, **fields)

    def death_of(self, worker: int) -> float | None:
        """Return the ``time.monotonic()`` of a worker's death, None if alive or unknown."""
        if self._deaths is None:
            return None
        entry = os.pread(self._deaths, _ENTRY.size, worker * _ENTRY.size)
        if len(entry) < _ENTRY.size:
            return None
        at: float = _ENTRY.unpack(entry)[0]
        return at or None

    def cause_of(self, worker: int) -> Cause | None:
        """Return why a worker is gone, or goes; None if that is not known, or not yet."""
        if self._deaths is None:
            return None
        try:
            self._causes = self._causes or _causes(self._folder)
            return self._causes.read(worker)
        except OSError:
            return None  # the job is over

    def confirm(self, workers: Collection[int]) -> None:
        """Wait until these workers are known to be dead, whoever believes so.

        Who is excluded without being dead sees the others go, and would train on alone. Blocks
        for as long as it takes: a launcher that is cut off has this worker ended, too.
        """
        complain = time.monotonic() + _BEFORE_COMPLAINT
        while self._deaths is not None:
            missing = [worker for worker in workers if self.death_of(worker) is None]
            if not missing:
                return
            time.sleep(_BETWEEN_LOOKS)
            if time.monotonic() > complain:
                self.tell("misses", workers=missing)
                complain = time.monotonic() + _BETWEEN_COMPLAINTS

    def admission(self, worker: int) -> dict[str, str]:
        """Wait until the launcher has this newcomer brought in; what MPI must find in its
        environment. Blocks for as long as it takes: a spare may wait for hours."""
        path = self._folder / f"{ADMISSION}-{worker}"
        os.mkfifo(path, 0o600)
        # Also for writing: a pipe without a writer would be at its end.
        with open(os.open(path, os.O_RDWR | os.O_CLOEXEC), "rb", buffering=0) as pipe:
            self.tell("waiting")
            said = b""
            while not said.endswith(b"\n"):
                said += pipe.read(LIMIT)
        os.unlink(path)
        found: dict[str, str] = json.loads(said)
        return found

    def obituaries(self, worker: int) -> Obituaries | None:
        """What tells this worker of deaths, if there is a launcher. Raises OSError."""
        return None if self._descriptor is None else Obituaries(self._folder, worker)

    def order_for(self, worker: int) -> Order | None:
        """Return what a worker was ordered last, if anything."""
        return None if self._orders is None else self._orders.read(worker)

    def progressed(
        self,
        worker: int,
        rounds: int,
        steps: int,
        doing: int,
        loss: float | None = None,
        measured: Measured = _UNMEASURED,
    ) -> None:
        """Say how far this worker has come, and what it does from now on. Never raises."""
        if self._progress is not None:
            number = math.nan if loss is None else loss
            record = rounds, steps, doing, time.monotonic(), number, *measured
            with suppress(OSError):  # no room is left: then nobody watches
                self._progress.write(worker, record)

    def vouch(self, worker: int, busy: Busy) -> Busy:
        """Say whether this worker is at work, whatever its processes seem to do. Never raises.

        Returns what was said before.
        """
        before, self._vouched = self._vouched, busy
        if self._busy is not None:
            with suppress(OSError):  # no room is left
                self._busy.write(worker, busy)
        return before


def admit(folder: Path, worker: int, environ: dict[str, str]) -> None:
    """Tell a newcomer that waits what MPI must find in its environment. Raises OSError."""
    # Whoever waits has it open for writing as well, so this neither blocks nor fails for want of
    # a reader; and it is less than a pipe holds.
    pipe = os.open(folder / f"{ADMISSION}-{worker}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.write(pipe, json.dumps(environ).encode() + b"\n")
    finally:
        os.close(pipe)


def record_death(job_dir: str, worker: int, at: float) -> None:
    """Write a death on the board, unless it is there already. For wrappers and the launcher."""
    board = os.open(os.path.join(job_dir, DEATHS), os.O_RDWR | os.O_CLOEXEC)
    try:
        entry = os.pread(board, _ENTRY.size, worker * _ENTRY.size)
        if entry in (b"", bytes(_ENTRY.size)):
            os.pwrite(board, _ENTRY.pack(at), worker * _ENTRY.size)
    finally:
        os.close(board)


def _writable(link: socket.socket) -> bool:
    poll = select.poll()  # select() would refuse descriptors above 1023
    poll.register(link, select.POLLOUT)
    return bool(poll.poll(PATIENCE * 1000))
