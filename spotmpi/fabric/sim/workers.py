"""The workers of a simulation: generators of requests, which go on when their replies come."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from spotmpi.errors import PeersLost
from spotmpi.fabric import Fetch, Handle, Rebuild, Request, Share, Steps, Welcome
from spotmpi.fabric.sim.collectives import Call, Data
from spotmpi.fabric.sim.timeline import Timeline
from spotmpi.protocol.membership import WorkerId
from spotmpi.protocol.recovery import Event, Send

LATER = object()
"""Stands for a reply that comes later."""


@dataclass
class Process:
    """One worker: its steps, and the events that it has not polled yet."""

    steps: Steps[Any]
    data: Data | None
    """Its data communicator. None until it is admitted."""
    calls: int = 0
    """Collectives started on ``data``."""
    under_way: dict[Handle, Call] = field(default_factory=dict)
    """Collectives that were started, but neither waited for to their end nor given up."""
    waiting: Request | None = None
    unnamed: bool = False
    """True if its request started what it waits for, so that the worker cannot give it up."""
    revoked: bool = False
    """True if it knows that its ``data`` is revoked."""
    dead_known: set[WorkerId] = field(default_factory=set)
    inbox: deque[Event] = field(default_factory=deque)
    control: int = 0
    """Number of its control path. Control paths are numbered from 0."""
    control_revoked: bool = False
    sent: int = 0
    """Tokens that it has sent since the last seal."""

    @property
    def fails(self) -> bool:
        """True if it knows that collectives must fail."""
        assert self.data is not None
        return self.revoked or not self.dead_known.isdisjoint(self.data.everybody)


Performer = Callable[[WorkerId, Process, Any], Any]
"""Performs a worker's request. Returns the reply if nobody could tell whether the worker dies
before it, else `LATER`."""


class Workers:
    """All workers of one simulation that have neither returned nor died."""

    def __init__(self, time: Timeline, over: Callable[[WorkerId], None]) -> None:
        """``over`` is called with each worker that has returned."""
        self.time, self._over = time, over
        self.processes: dict[WorkerId, Process] = {}
        self.returned: dict[WorkerId, Any] = {}
        """What workers have returned that came to their end."""
        self.transcript: list[str] | None = None
        """Gets a line for each request, end and arrival, if it is a list."""
        self.performers: dict[type, Performer] = {}
        """The performer of each type of request."""

    def begin(self, worker: WorkerId, process: Process) -> None:
        """Add ``worker``, and let it go some time later."""
        self.processes[worker] = process
        self.time.after(self.time.delays.compute, self.advance, worker, None)

    def advance(self, worker: WorkerId, reply: Any) -> None:
        """Let the worker go on with this reply now, if it is there."""
        process = self.processes.get(worker)
        if process is None:
            return
        steps, performers = process.steps, self.performers
        process.waiting = None
        try:
            while reply is not LATER:
                if isinstance(reply, PeersLost):
                    request = steps.throw(reply)
                else:
                    request = steps.send(reply)
                if self.transcript is not None:
                    self.tell(worker, _described(request))
                process.waiting = request
                reply = performers[type(request)](worker, process, request)
        except StopIteration as stop:
            self.returned[worker] = stop.value
            self._over(worker)

    def reply(self, worker: WorkerId, reply: Any = None, longest: float = 0.0) -> object:
        """Let the worker go on with this reply within ``longest`` seconds. Returns `LATER`."""
        if longest:
            self.time.after(longest, self.advance, worker, reply)
        else:
            self.time.soon(self.advance, worker, reply)
        return LATER

    def tell(self, worker: WorkerId, what: str) -> None:
        """Write down what happens to a worker, if there is a transcript."""
        if self.transcript is not None:
            time = self.time
            self.transcript.append(f"{time.events:6d} {time.now:9.4f} worker {worker}: {what}")

    def waiting(self) -> str:
        """Return what the first of them wait for, in words."""
        rows = (f"{w} on {p.waiting}" for w, p in list(self.processes.items())[:20])
        return "; ".join(rows)


def _described(request: Request) -> str:
    """Return ``request`` as a line of a transcript."""
    match request:
        case Send(to, token):
            lost = ",".join(map(str, sorted(token.lost))) or "nobody"
            return f"sends {token.kind.name.lower()} {token.attempt} (lost {lost}) to {to}"
        case Rebuild(members, change):
            what = f" ({change})" if change else ""
            return f"builds{what}" if members is not None else "builds without a verdict"
        case Welcome(newcomer):
            return f"welcomes {newcomer}"
        case Share(source):
            return f"shares the record of {source}"
        case Fetch(worker):
            return f"fetches the model of {worker}"
        case _:
            return type(request).__name__.lower()
