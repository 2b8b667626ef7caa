"""Every message that is heard from another process, typed: what is none is never acted upon.

Of workers (`spotmpi.launcher_channel`) and their wrappers (`wrapper_socket`) to their host's agent;
of agents to the head and back (`link`). What the user's commands and the launcher say to each other
is in `control_messages`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple

from spotmpi.launch.decoding import (
    Message,
    Most,
    OneOf,
    Page,
    Printable,
    Shown,
    Within,
    table,
)
from spotmpi.launch.processes import was_revoked
from spotmpi.launch.tcp_connections import TcpConnection
from spotmpi.launcher_channel import AT_MESSAGES, IN_SCRIPT, Cause, Order

MOST_LINKS = 1024
"""Connections that are claimed or confirmed at a time."""

MOST_NAME = 255
"""Characters of a host's name."""

MOST_SLOTS = 4096
"""Workers that one host may have."""

Worker = Annotated[int, Within(0, (1 << 20) - 1)]
Count = Annotated[int, Within(0, (1 << 63) - 1)]
Seconds = Annotated[float, Within(0, 1e9)]
Slots = Annotated[int, Within(1, MOST_SLOTS)]
Links = Annotated[tuple[TcpConnection, ...], Most(MOST_LINKS)]
Environment = dict[str, str]


# Of a worker's training, through its channel.


@dataclass(frozen=True)
class Runs(Message, event="runs"):
    """The worker's process is there."""

    pid: Annotated[int, Within(1, (1 << 31) - 1)]
    """On its host."""


@dataclass(frozen=True)
class Begin(Message, event="begin"):
    """A training is entered, the first one before MPI starts."""

    training: Count = 0
    """Which one of this process's, counted from 0."""


@dataclass(frozen=True)
class Ready(Message, event="ready"):
    """The fabric is up."""


@dataclass(frozen=True)
class Underway(Message, event="underway"):
    """A round is over, so that all were ready."""


@dataclass(frozen=True)
class Recovery(Message, event="recovery"):
    """Workers were lost, and the others go on."""

    generation: Count
    lost: tuple[Worker, ...]
    step: Count
    workers: Count
    verdict: Literal["retry", "repair"]
    total_ms: float | None
    recomputed_gradients: Count = 0
    """By this worker, since it began: computed again, or in vain."""


@dataclass(frozen=True)
class Change(Message, event="change"):
    """Workers have joined, or left on request."""

    generation: Count
    step: Count
    workers: Count
    joined: tuple[Worker, ...]
    left: tuple[Worker, ...]
    pause_ms: float | None


@dataclass(frozen=True)
class Follows(Message, event="follows"):
    """All follow this strategy from this step on."""

    step: Count
    strategy: Annotated[str, Shown(1024)]
    why: Annotated[str, Shown(1024)] | None
    """None: it is the first one, or the script asked for it."""


@dataclass(frozen=True)
class Checkpoint(Message, event="checkpoint"):
    """A checkpoint was written."""

    step: Count
    path: Annotated[str, Shown(4096)]


@dataclass(frozen=True)
class Unsaved(Message, event="unsaved"):
    """A checkpoint could not be written."""

    step: Count
    why: Annotated[str, Shown(4096)]
    patience: float | None = None
    """It is the end of the training, and is tried again for so many seconds."""


@dataclass(frozen=True)
class NotFinite(Message, event="not_finite"):
    """What is trained is not finite any more."""

    step: Count
    why: Annotated[str, Shown(4096)]
    brought: bool
    """What this worker brought to that step was not."""


@dataclass(frozen=True)
class EndsNotFinite(Message, event="ends_not_finite"):
    """Training is over, and what it has come to is not finite."""

    why: Annotated[str, Shown(4096)]


@dataclass(frozen=True)
class GoesOn(Message, event="goes_on"):
    """It was to end, but as nothing could be kept it goes on."""


@dataclass(frozen=True)
class Unkept(Message, event="unkept"):
    """Training is over, and its end could not be kept."""


@dataclass(frozen=True)
class Unable(Message, event="unable"):
    """It cannot begin, through no fault of its script."""

    why: Annotated[str, Page()]


@dataclass(frozen=True)
class Done(Message, event="done"):
    """Training is sealed; ordinary code follows."""


@dataclass(frozen=True)
class Failed(Message, event="failed"):
    """The script raised."""

    traceback: Annotated[str, Page()] = ""


@dataclass(frozen=True)
class Left(Message, event="left"):
    """The script ends with this code."""

    code: Annotated[int, Within(0, 255)]


@dataclass(frozen=True)
class Parted(Message, event="parted"):
    """It has left the others, as it was told to."""


@dataclass(frozen=True)
class Waiting(Message, event="waiting"):
    """A newcomer waits for what MPI must know."""


@dataclass(frozen=True)
class Connected(Message, event="connected"):
    """MPI runs in a newcomer, and connects it with its sponsor."""


@dataclass(frozen=True)
class Knocks(Message, event="knocks"):
    """A newcomer's script is where the others' are."""


@dataclass(frozen=True)
class Admitted(Message, event="admitted"):
    """A newcomer is one of the others now, and learns."""


@dataclass(frozen=True)
class Trains(Message, event="trains"):
    """A newcomer has learnt."""

    step: Count


@dataclass(frozen=True)
class Withdrawn(Message, event="withdrawn"):
    """A newcomer cannot go on with the others, for this reason."""

    why: Annotated[str, Page()]


@dataclass(frozen=True)
class Spawning(Message, event="spawning"):
    """The sponsor of a newcomer has asked MPI for it."""

    newcomer: Worker


@dataclass(frozen=True)
class GaveUp(Message, event="gave_up"):
    """The sponsor of a newcomer says that nothing will come of it."""

    newcomer: Worker
    why: Annotated[str, Page()]


@dataclass(frozen=True)
class Misses(Message, event="misses"):
    """MPI takes these for dead, and nothing is known of it."""

    workers: tuple[Worker, ...]


@dataclass(frozen=True)
class Says(Message, event="says"):
    """A sentence for the user."""

    text: Annotated[str, Shown(1000)]


# Of its wrapper, or what is known of the wrapper itself.


@dataclass(frozen=True)
class Met(Message, event="hello"):
    """The wrapper of a worker is there; or a stand-in, with what mpirun gave it."""

    worker: Worker
    environ: Environment | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Ended(Message, event="ended"):
    """The worker ended by itself; the status is as waitpid() has it. ``in_mpi``: it crashed in a
    call of MPI's that spotmpi had made."""

    status: Annotated[int, Within(0, 0xFFFF)]
    in_mpi: bool = False

    @property
    def revoked(self) -> bool:
        """Whether that counts as its revocation."""
        return self.in_mpi or was_revoked(self.status)


@dataclass(frozen=True)
class Crashed(Message, event="crashed"):
    """The worker has died by a signal of its own, as is told next; where it was, and at which step
    if it trained."""

    stacks: Annotated[str, Page()]
    step: Count | None


@dataclass(frozen=True)
class Stopped(Message, event="stopped"):
    """The worker has been stopped (SIGSTOP) for so long, and is killed for it."""

    seconds: Seconds


@dataclass(frozen=True)
class RuntimeEnds(Message, event="runtime"):
    """mpirun told the stand-in to end, which it does when MPI gives up."""


@dataclass(frozen=True)
class Cleared(Message, event="cleared"):
    """The worker and all below it were killed, as the launcher asked."""


@dataclass(frozen=True)
class Vanished(Message, event="vanished"):
    """The wrapper died unannounced."""


@dataclass(frozen=True)
class HostLost(Message, event="lost"):
    """The worker's host is gone."""

    how: Annotated[str, Shown()]
    kind: str = "reset"
    """As `Cause` has it."""
    stays: bool = False
    """It is the job's only one, and the launcher's own: just its agent was killed."""


@dataclass(frozen=True)
class Garbled(Message, event="garbled"):
    """It said something that is no message: a script may write into its channel."""

    why: Annotated[str, Shown()]


_OF_TRAINING = (
    *(
        Runs,
        Begin,
        Ready,
        Underway,
        Recovery,
        Change,
        Follows,
        Checkpoint,
        Unsaved,
        NotFinite,
        EndsNotFinite,
        GoesOn,
        Unkept,
        Unable,
        Done,
        Failed,
        Left,
        Parted,
    ),
    *(Waiting, Connected, Knocks, Admitted, Trains, Withdrawn, Spawning, GaveUp, Misses, Says),
)
FROM_STRANGER = table(Met)
FROM_WORKER = table(*_OF_TRAINING, Crashed, Ended, Stopped, RuntimeEnds, Cleared)
_PASSED_ON = table(*_OF_TRAINING, Crashed, Ended, Stopped, Cleared, Vanished, Garbled)


# Of an agent.


@dataclass(frozen=True)
class Hello(Message, event="hello"):
    """The agent's first word. Every version says it so; what follows may differ."""

    version: Annotated[str, Printable()]


@dataclass(frozen=True)
class Offer(Message, event="offer"):
    """The next: what it has for the job; ``problem`` is why it cannot run workers."""

    name: Annotated[str, Printable(MOST_NAME)]
    slots: Slots
    problem: Annotated[str, Shown()] | None


@dataclass(frozen=True)
class Fit(Message, event="ready"):
    """The answer to the assignment: all that the job needs is on this host."""


@dataclass(frozen=True)
class Unfit(Message, event="unfit"):
    """Instead: why not."""

    why: Annotated[str, Shown()]


@dataclass(frozen=True)
class Passed(Message, event="heard"):
    """What a worker or its wrapper said."""

    worker: Worker
    said: Annotated[Message, OneOf(_PASSED_ON)]


class Counted(NamedTuple):
    """A worker's `spotmpi.launcher_channel.Measured`."""

    whole: Count = 0
    samples: Count = 0
    computing: Seconds = 0.0
    waiting: Seconds = 0.0
    stalled: Seconds = 0.0


class HowFar(NamedTuple):
    """How far a worker has come: its `spotmpi.launcher_channel.Progress`, on no clock; and whether
    it is at work."""

    worker: Worker
    rounds: Count
    steps: Count
    doing: Annotated[int, Within(IN_SCRIPT, AT_MESSAGES)]
    ago: Seconds
    quiet: Seconds
    """Its processes have done nothing for so long."""
    busy: Annotated[str, Shown(64)]
    """With this, as its script says; empty if it says nothing."""
    loss: float | None = None
    """The mean of the last step's."""
    counted: Counted = Counted()


@dataclass(frozen=True)
class Progressed(Message, event="progress"):
    """How far workers have come, where that is new."""

    entries: tuple[HowFar, ...]


@dataclass(frozen=True)
class Logged(Message, event="logged"):
    """A log line of the agent's own."""

    line: Annotated[str, Shown(4000)]


@dataclass(frozen=True)
class Noticed(Message, event="noticed"):
    """This host is to be taken away, in so many seconds if that is known."""

    source: Annotated[str, Shown(200)]
    seconds: Annotated[float, Within(-1e9, 1e9)] | None
    what: Annotated[str, Shown(200)]
    advice: bool


@dataclass(frozen=True)
class Free(Message, event="free"):
    """It may be: the last worker has left it. To be answered with `Leave`."""


@dataclass(frozen=True)
class Claims(Message, event="claims"):
    """Connections of this host's workers that get no answer."""

    links: Links


@dataclass(frozen=True)
class Confirms(Message, event="confirms"):
    """Of what others claim, those whose other end a worker here has."""

    links: Links


@dataclass(frozen=True)
class UdpSocket(Message, event="udp"):
    """Where this end's beats in datagrams come from; the head answers with its own."""

    address: Annotated[str, Printable(64)]
    port: Annotated[int, Within(1, 65535)]


FROM_NEW_AGENT = table(Hello, Offer, Fit, Unfit)
FROM_AGENT = table(Passed, Progressed, Says, Logged, Noticed, Free, Claims, Confirms, UdpSocket)


# Of the head, to agents.


@dataclass(frozen=True)
class Assignment(Message, event="welcome"):
    """The answer to an `Offer`: what every host of a job has in common."""

    folder: str
    """Working directory of the scripts."""
    task: tuple[str, ...]
    """The script, or ``-m`` and the module, and the arguments."""
    environ: Environment = field(repr=False)
    """Variables of the launcher's that travel, and spotmpi's settings."""
    detect_ms: Annotated[int, Within(1, 1 << 31)] | None
    """A host that is silent for so long is lost; None: that is found out."""
    fence: Seconds
    """Of a silent head, after which the agent ends its workers."""


@dataclass(frozen=True)
class Refusal(Message, event="refused"):
    """Instead, or later: why this host is none of the job's."""

    why: Annotated[str, Shown()]


@dataclass(frozen=True)
class Start(Message, event="start"):
    """Run a worker, with what mpirun gave to its stand-in; to a newcomer it has given nothing."""

    worker: Worker
    local_size: Slots
    """Workers with which the job began on this host; its slots, if it came later."""
    environ: Environment = field(repr=False)


@dataclass(frozen=True)
class Admit(Message, event="admit"):
    """Let a newcomer that waits go on, with what its stand-in was given."""

    worker: Worker
    environ: Environment = field(repr=False)


@dataclass(frozen=True)
class Kill(Message, event="kill"):
    """Revoke a worker."""

    worker: Worker


@dataclass(frozen=True)
class Forsake(Message, event="forsake"):
    """Take a worker for dead: it was to be killed, and does not die."""

    worker: Worker


@dataclass(frozen=True)
class Instruct(Message, event="order"):
    """Put an order on the board."""

    worker: Worker
    order: Order


@dataclass(frozen=True)
class Hold(Message, event="hold"):
    """Stop reading what workers write, or go on."""

    on: bool


class MpiName(NamedTuple):
    """As whom MPI knows a worker."""

    namespace: Annotated[str, Printable()]
    rank: Annotated[int, Within(0, (1 << 32) - 1)]


@dataclass(frozen=True)
class Died(Message, event="died"):
    """A worker on some host, so many seconds ago; no name if MPI does not know it."""

    worker: Worker
    ago: Seconds
    name: MpiName | None


@dataclass(frozen=True)
class Explained(Message, event="explained"):
    """Why a worker is gone, or goes, on whatever host."""

    worker: Worker
    cause: Cause


@dataclass(frozen=True)
class Claimed(Message, event="claimed"):
    """What some host claims."""

    links: Links


@dataclass(frozen=True)
class End(Message, event="end"):
    """Kill all workers."""


@dataclass(frozen=True)
class Leave(Message, event="leave"):
    """The job is over, at least here. ``again``: it begins anew, and a host that came by itself is
    to come once more."""

    again: bool = False


FROM_HEAD = table(
    *(Assignment, Refusal, Start, Admit, Kill, Forsake, Instruct, Hold, Died, Claimed, End, Leave),
    *(UdpSocket, Explained),
)
