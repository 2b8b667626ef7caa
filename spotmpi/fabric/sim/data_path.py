"""The data path of a simulation: sums and copies over all members, which fail as badly as they may.

Parts of one round are summed side by side. A part that failed keeps writing to its result until it
is given up. A contribution that its worker changes during the round is found (`Misuse`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spotmpi.arrays.backend import fill
from spotmpi.arrays.narrowing import narrowed_sum
from spotmpi.arrays.sums_of_hosts import sum_of_hosts
from spotmpi.errors import PeersLost
from spotmpi.fabric import (
    Arena,
    Cancel,
    Handle,
    Part,
    Proceed,
    Revoke,
    Shape,
    Share,
    Start,
    Wait,
)
from spotmpi.fabric.planes.double_buffer import DoubleBuffer
from spotmpi.fabric.planes.plane import private_arena
from spotmpi.fabric.sim.collectives import RUBBISH, Call, Collective, Data, Misuse
from spotmpi.fabric.sim.mailboxes import Mailboxes
from spotmpi.fabric.sim.ways import Ways
from spotmpi.fabric.sim.workers import LATER, Process, Workers
from spotmpi.protocol.membership import WorkerId


class DataPath:
    """All data collectives of one simulation, and the memory for them.

    What is started has no effect before some time has passed. So others cannot tell whether the
    worker dies right after it or a moment later.
    """

    def __init__(
        self, workers: Workers, ways: Ways, mailboxes: Mailboxes, in_place: bool, weighs: bool
    ) -> None:
        """``in_place`` and ``weighs``: see `Simulation`."""
        self.mailboxes = mailboxes
        self._time, self._workers, self._ways = workers.time, workers, ways
        self._in_place, self._weighs = in_place, weighs
        self._handles: Handle = 0

    def arena(
        self,
        layout: Sequence[Shape],
        name: str = "",
        state: DoubleBuffer | None = None,
    ) -> Arena:
        """Return memory for rounds."""
        made = private_arena(layout, self._in_place, state)
        made.weighs = self._weighs and bool(name)
        made.name = name
        return made

    # What workers ask for.

    def start(self, worker: WorkerId, process: Process, request: Start) -> Any:
        """Perform `Start`."""
        if process.fails and self._time.random.random() < 0.5:
            fill([request.part.result], RUBBISH)
            return PeersLost("simulated")
        return self._call(worker, process, request.part)

    def proceed(self, worker: WorkerId, process: Process, request: Proceed) -> Any:
        """Perform `Proceed`: what was started goes on at any time."""
        return None

    def wait(self, worker: WorkerId, process: Process, request: Wait) -> Any:
        """Perform `Wait`."""
        self._proceed(worker, process)
        return LATER

    def cancel(self, worker: WorkerId, process: Process, request: Cancel) -> Any:
        """Perform `Cancel`."""
        for handle in request.handles:
            call = process.under_way.pop(handle, None)
            if call is not None and not call.done:
                call.spoil()
                call.spoil_rests()
        return None

    def share(self, worker: WorkerId, process: Process, request: Share) -> Any:
        """Perform `Share`."""
        process.unnamed = True
        if process.under_way:
            raise Misuse(f"worker {worker} shares with collectives under way")
        process.waiting = Wait([self._call(worker, process, request)])
        return LATER

    def revoke(self, worker: WorkerId, process: Process, request: Revoke) -> Any:
        """Perform `Revoke`."""
        process.revoked, data = True, process.data
        assert data is not None
        if not data.revoked:  # else the revocation is under way to everybody already
            data.revoked = True
            for peer in data.members:
                if peer != worker and peer in self._workers.processes:
                    self._time.after(self._time.delays.revoke, self._revoked, peer, data)
        return self._workers.reply(worker)

    # What comes of it.

    def _revoked(self, worker: WorkerId, data: Data) -> None:
        process = self._workers.processes.get(worker)
        if process is None or process.data is not data or process.revoked:
            return
        process.revoked = True
        self.disturb(worker, process)

    def _call(self, worker: WorkerId, process: Process, what: Part | Share) -> Handle:
        data = process.data
        assert data is not None
        if process.calls == len(data.collectives):
            data.collectives.append(Collective())
        call = Call(data.collectives[process.calls], what)
        if isinstance(what, Part):
            call.way = self._ways.begin(worker, data, what)
        process.calls += 1
        self._handles += 1
        process.under_way[self._handles] = call
        self._time.after(self._time.delays.compute, self._enter, worker, data, call)
        return self._handles

    def _enter(self, worker: WorkerId, data: Data, call: Call) -> None:
        process = self._workers.processes.get(worker)
        if process is None or call not in process.under_way.values():
            return
        call.entered = True
        call.collective.enter(worker, call)
        self._settle(data, call.collective)
        self.disturb(worker, process)

    def _settle(self, data: Data, collective: Collective) -> None:
        """Complete the collective on the workers that have entered, if it can be complete now."""
        if collective.result is None:
            if len(collective.brought) < len(data.members):
                return
            collective.result = self._sum(data, collective)
            if collective.result is None:
                return
            collective.brought = {}
        for worker in collective.entered:
            self._time.after(self._time.delays.collective, self._complete, worker, collective)
        collective.entered = []

    def _sum(self, data: Data, collective: Collective) -> list[Any] | None:
        """Return the sum. None if it is narrowed, which takes all workers, and one of them has
        failed or given up."""
        (way,) = {call.way for call in collective.calls.values()}
        brought = {one: collective.brought[one] for one in data.members}
        if not way:
            return [_sum([*brought.values()])]
        hosts = self._ways.hosts(data.members)
        found = {
            worker: call.what.narrowing
            for worker, call in collective.calls.items()
            if isinstance(call.what, Part) and call.what.narrowing is not None
        }
        if not found:
            return [sum_of_hosts(brought, hosts, way)]
        for worker, call in collective.calls.items():
            process = self._workers.processes.get(worker)
            if call.lost or (process is not None and call not in process.under_way.values()):
                return None
        return [narrowed_sum(brought, hosts, found)]

    def _complete(self, worker: WorkerId, collective: Collective) -> None:
        process = self._workers.processes.get(worker)
        if process is None:
            return
        for call in process.under_way.values():
            if call.collective is not collective or call.lost:
                continue
            assert collective.result is not None
            call.check_given(worker)
            if call.receives(worker):
                call.complete(collective.result)
            call.done = True
            self._proceed(worker, process)
            return

    def _proceed(self, worker: WorkerId, process: Process) -> None:
        """Reply to the worker if all that it waits for is done, or any of it is lost."""
        if not isinstance(process.waiting, Wait):
            return
        calls = [process.under_way[handle] for handle in process.waiting.handles]
        lost = any(call.lost for call in calls)
        if not lost and not all(call.done for call in calls):
            return
        if not lost or process.unnamed:
            for handle in process.waiting.handles:
                del process.under_way[handle]
        process.waiting, process.unnamed = None, False
        self._workers.reply(worker, PeersLost("simulated") if lost else None)

    def disturb(self, worker: WorkerId, process: Process) -> None:
        """Fail what the worker waits for if it knows of a loss or a revocation."""
        if process.data is None or not process.fails:
            return
        self.mailboxes.disturb(worker, process)
        for handle, call in list(process.under_way.items()):
            if not call.entered or call.done or call.lost:
                continue
            if call.collective.result is not None and self._time.random.random() < 0.5:
                continue  # it is complete for this worker, and its result is under way
            call.lost = True
            if call.receives(worker):
                call.spoil()
                self._time.after(self._time.delays.collective, self._scribble, worker, handle)
        self._proceed(worker, process)

    def _scribble(self, worker: WorkerId, handle: Handle) -> None:
        """Write rubbish once more: a part that failed is not over before it is given up."""
        process = self._workers.processes.get(worker)
        if process is not None and handle in process.under_way:
            process.under_way[handle].spoil()


def _sum(brought: Sequence[Any]) -> Any:
    """Return the sum in ring order, the one order that a replay can repeat to the bit."""
    total = brought[0].copy()
    for flat in brought[1:]:
        total += flat
    return total
