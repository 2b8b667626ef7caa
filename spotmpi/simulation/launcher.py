"""The launcher of a simulated job: the shipped state and the shipped decisions, on simulated words.

Who is a newcomer's sponsor, how long that may take and what is tried again is decided by the code
that decides it in a real job. What is simulated is how words, orders and deaths come about: late,
each worker's in their order.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

from spotmpi.exit_codes import EXIT_BUG
from spotmpi.fabric.sim.simulation import Simulation
from spotmpi.launch import messages
from spotmpi.launch.decoding import decode
from spotmpi.launch.head.job_state import JobState
from spotmpi.launch.head.membership_changes import MembershipChanges
from spotmpi.launch.limits import Limits
from spotmpi.launcher_channel import Cause, Order
from spotmpi.protocol.membership import WorkerId
from spotmpi.simulation.checker import Checker, Violation

__all__ = ["Launcher"]

_KILLED = 9
"""A process's end, as waitpid() has it."""

_PACE = 1e-3
"""Simulated seconds that one of the launcher's takes: simulated steps are as much shorter."""

_NO_ORDER = Order()


class Launcher:
    """Of one simulated job."""

    mute = False
    """mpirun answers."""

    def __init__(self, simulation: Simulation, checker: Checker) -> None:
        self._simulation, self._time = simulation, simulation.time
        self._checker = checker
        self._state = JobState()
        self._changes = MembershipChanges(
            self, self._state, self._after, 0, False, keeps=True, least=1, limits=Limits()
        )
        self._began = False
        self._words: dict[WorkerId, deque[tuple[str, dict[str, Any]]]] = defaultdict(deque)
        self._given: dict[WorkerId, Order] = {}
        self._read: dict[WorkerId, Order] = {}
        self._state.expect(worker.host for worker in simulation.membership)
        simulation.faults.arrived = self._arrives
        simulation.ended = self._ended
        simulation.newcomers.connected = lambda newcomer: self.hear(newcomer, "connected", {})

    def order_for(self, worker: WorkerId) -> Order:
        """What has come to ``worker`` of its orders."""
        return self._read.get(worker, _NO_ORDER)

    def hear(self, worker: WorkerId, event: str, fields: dict[str, Any]) -> None:
        """``worker`` says something, which arrives later."""
        self._words[worker].append((event, fields))
        self._time.after(self._time.delays.message, self._next, worker)

    def _ended(self, worker: WorkerId, died: bool) -> None:
        code = None if died else self._simulation.workers.returned[worker]
        status = _KILLED if code is None else code << 8
        self.hear(worker, messages.Ended.event, {"status": status})

    def _next(self, worker: WorkerId) -> None:
        event, fields = self._words[worker].popleft()
        if self._state.ending is None:
            said = decode(json.dumps({"event": event, **fields}).encode(), messages.FROM_WORKER)
            self._take(worker, said)
            self._changes.tend()
        self._see_to_the_end()

    def _take(self, worker: WorkerId, said: Any) -> None:
        """As `launch.head.job` does."""
        match said:
            case messages.Ended(status=status):
                self._state.ended(worker, status)
                self._changes.gone(worker)
            case messages.Spawning(newcomer=newcomer):
                self._changes.spawning(newcomer)
            case messages.GaveUp(newcomer=newcomer, why=why):
                self._changes.gave_up(newcomer, why)
            case _:
                self._state.told(worker, said)
                self._changes.told(worker, said)
        if self._state.started and not self._began:
            self._began = True
            self._changes.began()

    def _see_to_the_end(self) -> None:
        """When nobody trains any more, newcomers are ended."""
        ending = self._state.ending
        if ending is not None and ending.code == EXIT_BUG:
            raise Violation(f"the launcher takes a revocation for a bug: {ending.sentence}")
        if ending is None and not self._state.complete:
            return
        for worker, fate in enumerate(self._state.fates):
            if fate.lives and self._state.learning(worker):
                self.revoke(worker)

    # What the shipped decisions are carried out by.

    def _after(self, seconds: float, name: str, action: Callable[[], None]) -> None:
        def act() -> None:
            if self._state.ending is None and not self._state.complete:
                action()
                self._changes.tend()

        self._time.at(self._time.now + seconds * _PACE, act)

    def revoke(self, worker: WorkerId) -> None:
        """Kill it."""
        self._time.after(self._time.delays.message, self._simulation.kill, worker)

    def order(self, worker: WorkerId, order: Order) -> None:
        """It arrives later; of several the last one counts."""
        self._given[worker] = order
        self._time.after(self._time.delays.message, self._post, worker)

    def _post(self, worker: WorkerId) -> None:
        self._read[worker] = self._given[worker]

    def _arrives(self, worker: WorkerId) -> None:
        self.recruit(f"host of {worker}")

    def explain(self, worker: WorkerId, cause: Cause) -> None:
        """Whoever wants to know asks the schedule."""

    def recruit(self, host: str) -> int | None:
        """A newcomer begins there."""
        if self._state.ending is not None or self._state.complete:
            return None
        worker = self._changes.newcomer(host, 1)
        self._checker.asked_for(worker, host)
        self._simulation.come(worker)
        return worker

    def bring(self, worker: WorkerId) -> None:
        """A simulated newcomer needs nothing for that."""
