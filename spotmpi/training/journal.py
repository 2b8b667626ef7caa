"""What a worker writes to the trace, and when: nothing is written that could be taken back.

The record of a step waits until the step is *stable*: until a later round has completed, which
says that everybody has committed it. The leader writes it then; the others keep it until they know
that one who led has written it. So whoever dies, each step is written once; or, if nobody is left
who was there, not at all, and the trace says so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spotmpi.launcher_channel import LauncherChannel
from spotmpi.protocol.ledger import Settlement
from spotmpi.protocol.membership import WorkerId
from spotmpi.protocol.sampler import Lease
from spotmpi.protocol.trials import Choice
from spotmpi.strategies import Strategy
from spotmpi.trace.records import Trace
from spotmpi.training.driver import Recovered

Record = tuple[str, dict[str, Any]]


@dataclass
class _Entry:
    round: int
    step: int
    before: Sequence[Record]
    """What is written in front of it."""
    describe: Callable[[], dict[str, Any]]
    strategy: str
    digest: str | None = None


class Journal:
    """One worker's side of the trace."""

    def __init__(
        self, trace: Trace, channel: LauncherChannel, me: WorkerId, strategy: Callable[[], str]
    ) -> None:
        """``strategy``: the name of the one that is followed."""
        self.trace = trace
        self._channel = channel
        self._me = me
        self._strategy = strategy
        self._waiting: deque[_Entry] = deque()
        self._leader: WorkerId | None = None
        self._led_since = 0
        """The first round that was committed here under this leader."""
        self._due = 0
        """The step that the trace lacks first, if this worker leads."""
        self._recovered: list[Recovered] = []
        self._choices: dict[int, Choice] = {}
        """Those that were known last, ..."""
        self._chosen: list[Record] = []
        """... and those that wait for the next step."""
        self._changed: tuple[int, Strategy] | None = None
        """The strategy that all have changed to last, and since which step it is followed."""
        self._unexplained: set[WorkerId] = set()
        """Workers that are gone, of whom this one has not written why."""
        self._loops: set[int] = set()
        """Loops over batches that are told of, or known to be."""
        self._last: _Entry | None = None
        """It still lacks the digest of the parameters after it, as do ..."""
        self._undigested: list[dict[str, Any]] = []
        """... what this worker has to say of the recoveries before it."""

    def begin(self, resumed: int | None) -> None:
        """The first leader calls it once. ``resumed``: the step to go on with, None for a run that
        replaces what is there."""
        self.trace.begin(resume=resumed is not None)
        # Workers have met before, while an earlier run's last step was there.
        self._due = resumed or 0

    def recovered(self, recovered: Recovered) -> None:
        """A recovery is through; its record waits for the first step committed after it."""
        self._recovered.append(recovered)

    @property
    def wants_steps(self) -> bool:
        """Whether the next step's record would go anywhere."""
        return self.trace.active or bool(self._recovered)

    def chose(
        self,
        step: int,
        generation: int,
        choices: Sequence[Choice | None],
        arrays: Sequence[int] | None = None,
    ) -> None:
        """So it was chosen, up to ``step``, which way the sum of each array goes from the next one
        on. What was known before is told once. ``arrays``: which these are, where they are some of
        all."""
        for array, choice in zip(arrays or range(len(choices)), choices, strict=True):
            if choice is None:
                self._choices.pop(array, None)
            elif choice != self._choices.get(array):
                self._choices[array] = choice
                told = {
                    "generation": generation,
                    "step": step,
                    "array": array,
                    "bytes": choice.size,
                    "ms": {way: _ms(0.0, took) for way, took in choice.seconds.items()},
                    "way": choice.way,
                }
                self._chosen.append(("way", told))

    def switched(
        self,
        step: int,
        generation: int,
        strategy: Strategy,
        before: Strategy,
        known: Mapping[str, Any],
    ) -> None:
        """All go on with another strategy from this step on. ``known``: why, if this worker is the
        one that decided it."""
        told = {
            "step": step,
            "generation": generation,
            "strategy": str(strategy),
            "strategy_name": strategy.name,
            "before": before.called,
            "why": known.get("why"),
            "figures": known.get("figures"),
        }
        self._changed = step, strategy
        self._choices.clear()  # the same arrays may be others to the data plane
        self._chosen.append(("strategy", told))

    def batches(self, step: int, loop: int, planned: Mapping[str, int]) -> None:
        """From this step on the script goes through these batches, if that is new."""
        if loop not in self._loops:
            self._loops.add(loop)
            self._chosen.append(("batches", {"step": step, "loop": loop, **planned}))

    def follows(self, step: int, strategy: Strategy, why: str | None = None) -> None:
        """For the leader: tell the launcher what is followed from this step on."""
        self._channel.tell("follows", step=step, strategy=strategy.called, why=why)

    def step(
        self,
        number: int,
        step: int,
        describe: Callable[[], dict[str, Any]],
        now: float,
        gradients: int,
    ) -> None:
        """``step`` is committed in round ``number`` at ``now``.

        ``describe`` gives the rest of its record, and is called only if it is this worker that
        writes it: it names every worker, and all but one of them would do so in vain.
        ``gradients``: those that this worker computed in vain so far.
        """
        records: list[Record] = []
        for recovered in self._recovered:
            if recovered.verdict.change:
                changed = self._change(recovered, step)
                self._channel.tell("change", workers=len(recovered.after), **changed)
                came = recovered.after.workers
                hosts = [one.host for one in came if one.id in changed["joined"]]
                records.append(("change", {**changed, "hosts": hosts}))
                self._unexplained.update(changed["left"])
            if not recovered.losses:
                continue
            record = self._recovery(recovered, step, now, gradients)
            self._channel.tell("recovery", workers=len(recovered.after), **record)
            own = {key: value for key, value in record.items() if key not in ("lost", "verdict")}
            self._undigested.append({"at": now, "worker": self._me, **own})
            records.append(("recovery", record))
            self._unexplained.update(record["lost"])
        self._recovered.clear()
        records += self._chosen
        self._chosen = []
        self._last = _Entry(number, step, records, describe, self._strategy())
        self._waiting.append(self._last)

    def digested(self, digest: int) -> None:
        """The parameters after the step given last, which nobody had to wait for."""
        said = f"{digest:016x}"
        for fields in self._undigested:
            self.trace.write("recovered", **fields, digest=said)
        self._undigested.clear()
        if self._last is not None:
            self._last.digest, self._last = said, None

    def stable(self, number: int, leader: WorkerId) -> None:
        """Round ``number`` is complete under ``leader``: what came before it may be shown."""
        if leader != self._leader:
            self._leader, self._led_since = leader, number
            if leader == self._me:
                written = self.trace.take_over()
                self._due = 0 if written is None else written + 1
                if self._changed is not None:  # who led may not have lived to tell it
                    self.follows(*self._changed)
        if leader != self._me:
            # That the round is complete says that the leader committed the one before. It led when
            # it did only if that came after the first one seen here: the first may have been a
            # repair, of a round that it committed while another, who died, was to write.
            while number - 1 > self._led_since and self._before(number - 1):
                self._waiting.popleft()
            return
        while self._before(number):
            entry = self._waiting.popleft()
            if entry.step < self._due:
                continue
            self.reach(entry.step, entry.strategy)
            for event, fields in entry.before:
                self.trace.write(event, **fields)
            self.trace.write("step", step=entry.step, **entry.describe(), digest=entry.digest)
            self._due = entry.step + 1
        self._explain()

    def _explain(self) -> None:
        """Write why workers are gone, once the launcher has said so: it may come to that later."""
        for worker in sorted(self._unexplained):
            if (cause := self._channel.cause_of(worker)) is not None:
                self.trace.write("cause", worker=worker, cause=cause.kind, why=cause.why)
                self._unexplained.discard(worker)

    def reach(self, step: int, strategy: str | None = None) -> None:
        """For the leader: say so if steps before this one are missing, as all who took part in them
        are lost. ``strategy``: that of this step, if another one may be followed by now."""
        if self._due < step:
            known = {"steps": step - self._due, "strategy_name": strategy or self._strategy()}
            self.trace.write("gap", step=self._due, **known)
            self._due = step

    def end(
        self, step: int, workers: Sequence[WorkerId], outcome: str, left_early: Sequence[int]
    ) -> None:
        """For the leader: training is over, with ``left_early`` batches not gone through."""
        self.reach(step)
        self._explain()
        known = {"workers": workers, "outcome": outcome, "left_early": left_early}
        self.trace.write("end", step=step, **known)

    @staticmethod
    def _change(recovered: Recovered, step: int) -> dict[str, Any]:
        before, after = recovered.before, recovered.after
        return {
            "generation": after.generation,
            "step": step,
            "joined": [worker for worker in after.ids if worker not in before],
            "left": sorted(recovered.verdict.change.leaving),
            "pause_ms": _ms(recovered.entered, recovered.settled),
        }

    def _before(self, number: int) -> bool:
        return bool(self._waiting) and self._waiting[0].round < number

    def _recovery(
        self, recovered: Recovered, step: int, now: float, gradients: int
    ) -> dict[str, Any]:
        lost = recovered.losses
        deaths = [at for at in map(self._channel.death_of, lost) if at is not None]
        death = min(deaths) if deaths else None
        repaired = recovered.verdict.repairs
        # A worker that is computing when another dies meets the loss only when it comes back.
        detecting = None if death is None else max(death, recovered.entered)
        return {
            "generation": recovered.after.generation,
            "lost": lost,
            "step": step,
            "came_ms": None if death is None else _ms(death, max(death, recovered.entered)),
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


def described(
    rates: Sequence[float],
    loss: float | None,
    lease: Lease | None,
    step: int,
    of_round: dict[str, Any],
) -> dict[str, Any]:
    """The record of one step of a round, of what is known of both, and what each slot brought."""
    workers = of_round["workers"]
    if lease is None:
        contributions = [{"worker": worker, "samples": None, "weight": 1} for worker in workers]
    else:
        contributions = [
            {"worker": lease.slots[slot], "samples": samples, "weight": len(samples)}
            for slot in lease.slots_of(workers)
            for samples in [lease.part(slot, step, len(rates))]
        ]
    return {**of_round, "contributions": contributions, "rate": rates[step], "loss": loss}


_SETTLEMENTS = {
    Settlement.RETRY: "retried",
    Settlement.RECEIVE: "received",
    Settlement.GIVE: "gave",
}


def _ms(begin: float | None, end: float) -> float | None:
    return None if begin is None else round(1e3 * (end - begin), 3)
