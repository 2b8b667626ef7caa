"""What a worker writes to the trace, and when: nothing is written that could be taken back.

The record of a step waits until the step is *stable*: until a later round has completed, which
says that everybody has committed it. The leader writes it then; the others keep it for one round
more, after which the leader is known to have written. So whoever dies, each step is written once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spotmpi.channel import Channel
from spotmpi.driver import Recovered
from spotmpi.ledger import Settlement
from spotmpi.membership import WorkerId
from spotmpi.trace import Trace

Record = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class _Entry:
    round: int
    step: int
    records: Sequence[Record]


class Journal:
    """One worker's side of the trace."""

    def __init__(self, trace: Trace, channel: Channel, me: WorkerId) -> None:
        self.trace = trace
        self._channel = channel
        self._me = me
        self._waiting: deque[_Entry] = deque()
        self._writing = False
        self._recovered: list[Recovered] = []

    def recovered(self, recovered: Recovered) -> None:
        """A recovery is through; its record waits for the first step committed after it."""
        self._recovered.append(recovered)

    def step(self, number: int, fields: dict[str, Any], now: float, gradients: int) -> None:
        """Step ``fields["step"]`` is committed in round ``number`` at ``now``.

        ``gradients``: those that this worker computed in vain so far.
        """
        step = int(fields["step"])
        records: list[Record] = []
        for recovered in self._recovered:
            record = self._recovery(recovered, step, now, gradients)
            self._channel.tell("recovery", workers=len(recovered.after), **record)
            self.trace.write(
                "recovered",
                worker=self._me,
                **{key: value for key, value in record.items() if key not in ("lost", "verdict")},
            )
            records.append(("recovery", record))
        self._recovered.clear()
        records.append(("step", fields))
        self._waiting.append(_Entry(number, step, records))

    def stable(self, number: int, leader: bool) -> None:
        """Round ``number`` is complete: what was committed before it may be shown."""
        if not leader:
            self._writing = False
            while self._waiting and self._waiting[0].round < number - 1:
                self._waiting.popleft()
            return
        written = None
        if not self._writing:
            self._writing = True
            written = self.trace.take_over()
        while self._waiting and self._waiting[0].round < number:
            entry = self._waiting.popleft()
            if written is not None and entry.step <= written:
                continue
            for event, fields in entry.records:
                self.trace.write(event, **fields)

    def _recovery(
        self, recovered: Recovered, step: int, now: float, gradients: int
    ) -> dict[str, Any]:
        lost = [w for w in recovered.before.ids if w not in recovered.after]
        deaths = [at for at in map(self._channel.death_of, lost) if at is not None]
        death = min(deaths) if deaths else None
        repaired = recovered.verdict.repairs
        # A worker that is computing when another dies meets the loss only when it comes back.
        detecting = None if death is None else max(death, recovered.entered)
        return {
            "generation": recovered.after.generation,
            "lost": lost,
            "step": step,
            "detect_ms": _ms(detecting, recovered.detected),
            "revoke_ms": _ms(recovered.detected, recovered.revoked),
            "reconcile_ms": _ms(recovered.revoked, recovered.reconciled),
            "accept_ms": _ms(recovered.reconciled, recovered.accepted),
            "restart_ms": _ms(recovered.accepted, recovered.settled),
            "total_ms": _ms(death, now),
            "verdict": "repair" if repaired else "retry",
            "lost_steps": max(0, recovered.progress - recovered.verdict.survey.high),
            "recomputed_gradients": gradients,
            "messages_sent": {str(self._me): recovered.messages},
            "settlement": _SETTLEMENTS[recovered.settlement],
        }


_SETTLEMENTS = {
    Settlement.RETRY: "retried",
    Settlement.RECEIVE: "received",
    Settlement.GIVE: "gave",
}


def _ms(begin: float | None, end: float) -> float | None:
    return None if begin is None else round(1e3 * (end - begin), 3)
