"""A simulation: workers come, go on together, and go, each at any event."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from spotmpi import fabric
from spotmpi.fabric.sim.builds import Builds
from spotmpi.fabric.sim.control_path import ControlPath
from spotmpi.fabric.sim.data_path import DataPath
from spotmpi.fabric.sim.errands import Errands
from spotmpi.fabric.sim.faults import Arrival, Faults, Kill, LeaveNotice
from spotmpi.fabric.sim.mailboxes import Mailboxes
from spotmpi.fabric.sim.models import Marks, Models
from spotmpi.fabric.sim.newcomers import Newcomers
from spotmpi.fabric.sim.sums import Sums
from spotmpi.fabric.sim.timeline import USUAL, Delays, Timeline
from spotmpi.fabric.sim.ways import Ways
from spotmpi.fabric.sim.workers import Process, Workers
from spotmpi.protocol.membership import Membership, WorkerId
from spotmpi.protocol.recovery import Lost, RevokeControl, Send


class Hang(AssertionError):
    """Workers remain that wait for something that will never come."""


class Simulation:
    """Runs one generator of requests per worker until all have returned or died."""

    def __init__(
        self,
        membership: Membership,
        seed: int,
        kills: Iterable[Kill] = (),
        delays: Delays = USUAL,
        arrivals: Iterable[Arrival] = (),
        notices: Iterable[LeaveNotice] = (),
        in_place: bool = False,
        weighs: bool = False,
        hosts: int = 3,
        stop: int | None = None,
    ) -> None:
        """``in_place``: the data plane sums in place; else its results are apart. ``weighs``: it
        multiplies contributions to rounds of named arenas with their weights. ``hosts``: number of
        hosts of the workers. ``stop``: event number at which all are told to stop."""

        def host_of(worker: WorkerId) -> int:
            return worker % hosts

        self.membership = membership
        self.time = Timeline(seed, delays)
        self.workers = workers = Workers(self.time, self._returned)
        self.faults = Faults(self.time, kills, arrivals, notices, stop, self._arrive)
        self.ways = Ways(workers, host_of)
        mailboxes = Mailboxes(workers)
        self.data_path = data = DataPath(workers, self.ways, mailboxes, in_place, weighs)
        self.newcomers = newcomers = Newcomers(workers)
        self.models = models = Models(workers)
        self.sums = Sums(workers, host_of)
        self.errands = Errands(workers)
        self._control = control = ControlPath(workers, self.faults)
        self.builds = builds = Builds(membership.ids, workers, control, newcomers, models)
        self.newcomer: Callable[[WorkerId], fabric.Steps[Any]]
        """Makes the steps of a newcomer. Must be set if there are arrivals."""
        self.deaths: dict[WorkerId, float] = {}
        """Workers that died, and when, in simulated seconds."""
        self.ended: Callable[[WorkerId, bool], None] = lambda worker, died: None
        """Called when a worker ends, with True if it died."""
        marks = Marks(workers)
        workers.performers = {
            fabric.AddUp: self.sums.add_up,
            fabric.Cancel: data.cancel,
            fabric.Depart: builds.depart,
            fabric.Fetch: models.fetch,
            fabric.Knock: newcomers.wait,
            fabric.Meet: newcomers.wait,
            fabric.Poll: control.poll,
            fabric.Post: mailboxes.post,
            fabric.Proceed: data.proceed,
            fabric.Publish: models.publish,
            fabric.Rebuild: builds.come,
            fabric.Receive: mailboxes.receive,
            fabric.Revoke: data.revoke,
            RevokeControl: control.revoke,
            Send: control.send,
            fabric.Share: data.share,
            fabric.Signal: marks.signal,
            fabric.Signals: marks.signals,
            fabric.Start: data.start,
            fabric.Wait: data.wait,
            fabric.Welcome: newcomers.welcome,
            fabric.Work: self.errands.work,
        }

    def start(self, worker: WorkerId, steps: fabric.Steps[Any]) -> None:
        """Let ``worker``, a member of the first membership, begin."""
        self.workers.begin(worker, Process(steps, self.builds.begin()))

    def come(self, worker: WorkerId, sponsor: WorkerId | None = None) -> None:
        """Let a newcomer begin. Without a sponsor it waits for one."""
        process = Process(self.newcomer(worker), None)
        self.newcomers.come(worker, process, sponsor)
        self.workers.begin(worker, process)

    def run(self, limit: int = 10_000_000) -> None:
        """Run until every worker has returned or died. Raises `Hang` if that never happens."""
        time, faults, kill = self.time, self.faults, self.kill
        while time.step():
            faults.happen(kill)
            if time.events > limit:
                raise Hang(f"no end after {limit} events; waiting: {self.workers.waiting()}")
        if self.workers.processes:
            raise Hang(f"nothing can happen any more; waiting: {self.workers.waiting()}")

    def close(self) -> None:
        """Close the steps of the workers that remain after a run that failed."""
        for process in self.workers.processes.values():
            process.steps.close()

    def _arrive(self, worker: WorkerId) -> None:
        """Let a newcomer come without a launcher: the first member alive is its sponsor at once."""
        members = [w for w in self.builds.ring if w in self.workers.processes]
        if members:
            self.workers.tell(worker, f"comes, to {members[0]}")
            self.come(worker, members[0])

    # Ends of workers, and how the others learn of each.

    def kill(self, worker: WorkerId) -> None:
        """Let ``worker`` die now, if it lives. Its own steps must not call this."""
        process = self._remove(worker)
        if process is None:
            return
        process.steps.close()
        self.deaths[worker] = self.time.now
        self.workers.tell(worker, "dies")
        self._control.cut(worker)
        self.ended(worker, True)
        self._gone(worker)

    def _returned(self, worker: WorkerId) -> None:
        self._remove(worker)
        self.workers.tell(worker, "returns")
        self.ended(worker, False)
        # MPI takes a worker that ended without a word for a dead one. Usually all end
        # together, so that nobody remains who could be told.
        self.time.at(self.time.now + self.time.delays.collective, self._gone, worker)

    def _remove(self, worker: WorkerId) -> Process | None:
        """Remove the worker. Returns its process, if it was there."""
        process = self.workers.processes.pop(worker, None)
        self.newcomers.gone(worker)
        if process is not None:
            self.builds.gone(worker, process)
        return process

    def _gone(self, worker: WorkerId) -> None:
        for peer in self.workers.processes:
            self.time.after(self.time.delays.notice, self._learn, peer, worker)
        self.time.after(self.time.delays.notice, self.builds.attempt)

    def _learn(self, worker: WorkerId, lost: WorkerId) -> None:
        process = self.workers.processes.get(worker)
        if process is None:
            return
        process.dead_known.add(lost)
        self._control.hear(worker, process, Lost(frozenset({lost})))
        self.data_path.disturb(worker, process)
