"""A job whose workers come and leave: verdict and orders are real, the crew notes its orders."""

from __future__ import annotations

from collections.abc import Callable

from spotmpi.launch.head.job_state import JobState
from spotmpi.launch.head.membership_changes import MembershipChanges
from spotmpi.launch.limits import Limits
from spotmpi.launcher_channel import Cause, Order
from tests.saying import said

__all__ = ["LIMITS", "Job"]

LIMITS = Limits(spawn=12.0)

KILLED = 9
"""A process's end, as waitpid() has it."""


class Job:
    """Two workers on h1, one on h2, that train; and its crew."""

    def __init__(
        self, spares: int = 0, replace: bool = False, keeps: bool = True, least: int = 1
    ) -> None:
        self.revoked: list[int] = []
        self.orders: dict[int, Order] = {}
        self.brought: list[int] = []
        self.causes: dict[int, Cause] = {}
        self.full = False
        self.room = True
        self.mute = False
        self.stays: dict[str, int] = {}
        self.later: list[tuple[float, Callable[[], None]]] = []
        self.verdict = JobState()
        self.turnover = MembershipChanges(
            self, self.verdict, self.after, spares, replace, keeps, least, LIMITS
        )
        self.verdict.expect(["h1", "h1", "h2"])

    def begin(self) -> Job:
        for worker in range(3):
            self.verdict.told(worker, said("ready"))
        self.turnover.began()
        return self

    def after(self, seconds: float, name: str, action: Callable[[], None]) -> None:
        self.later.append((seconds, action))

    # What a crew does.

    def revoke(self, worker: int) -> None:
        self.revoked.append(worker)

    def order(self, worker: int, order: Order) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        self.orders[worker] = order

    def explain(self, worker: int, cause: Cause) -> None:
        self.causes[worker] = cause

    def recruit(self, host: str) -> int | None:
        return self.come(host, self.stays.get(host, 1)) if self.room else None

    def bring(self, worker: int) -> None:
        self.brought.append(worker)

    # What a test does.

    def come(self, host: str, stay: int = 1, until: str = "waiting") -> int:
        """A newcomer comes so far."""
        self.stays[host] = stay
        worker = self.turnover.newcomer(host, stay)
        self.go_on(worker, until)
        return worker

    def go_on(self, worker: int, until: str) -> None:
        """It says all of this, as far as it is new."""
        for event in ("waiting", "connected", "ready", "knocks", "admitted", "trains"):
            self.tell(worker, event)
            if event == until:
                break

    def tell(self, worker: int, event: str) -> None:
        told = said(event, **({"step": 7} if event == "trains" else {}))
        self.verdict.told(worker, told)
        self.turnover.told(worker, told)
        self.turnover.tend()

    def end(self, *workers: int) -> None:
        for worker in workers:
            self.verdict.ended(worker, KILLED)
            self.turnover.gone(worker)
        self.turnover.tend()

    def pass_time(self) -> None:
        """All that is due, once."""
        due, self.later = self.later, []
        for _, action in due:
            action()
        self.turnover.tend()

    @property
    def states(self) -> list[str]:
        return [fate.state for fate in self.verdict.fates]
