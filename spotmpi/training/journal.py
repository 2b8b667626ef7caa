"""What a worker writes to the trace, and when: only what cannot be taken back.

The line of a step waits until the step is *stable*: a later round has completed, so all workers
have committed the step. Then the leader writes it. The others keep it until they know that a leader
has written it. So each step is written once, even if workers die. If no worker is left that took
part in it, it is not written, and the trace says so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spotmpi.launcher_channel import LauncherChannel
from spotmpi.policies import Metrics
from spotmpi.protocol.ledger import Settlement
from spotmpi.protocol.membership import WorkerId
from spotmpi.protocol.sampler import Lease
from spotmpi.protocol.trials import Choice
from spotmpi.rounds.recovered import Recovered
from spotmpi.strategies import Strategy
from spotmpi.trace.records import Trace

Record = tuple[str, dict[str, Any]]

_BETWEEN_TRIES = 0.01
_TRIES = 100
"""Seconds between two looks for the cause of a loss, at the end, and the most looks."""


@dataclass
class _Entry:
    round: int
    step: int
    before: Sequence[Record]
    """Lines to write before the step's line."""
    describe: Callable[[], dict[str, Any]]
    strategy: str
    digest: str | None = None


class Journal:
    """One worker's side of the trace."""

    def __init__(
        self, trace: Trace, channel: LauncherChannel, me: WorkerId, strategy: Callable[[], str]
    ) -> None:
        """``strategy``: returns the name of the strategy that workers follow."""
        self.trace = trace
        self._channel = channel
        self._me = me
        self._strategy = strategy
        self._waiting: deque[_Entry] = deque()
        self._leader: WorkerId | None = None
        self._led_since = 0
        """First round that was committed here under this leader."""
        self._due = 0
        """First step that the trace lacks, if this worker leads."""
        self._recovered: list[Recovered] = []
        self._choices: dict[int, Choice] = {}
        """Last known choice of a way for the sums of each array, by the array's number."""
        self._chosen: list[Record] = []
        """Lines that wait for the next step: ways, surveys, strategies, loops over batches."""
        self._changed: tuple[int, Strategy, str | None] | None = None
        """The last change of the strategy: from which step on, to which strategy, and why."""
        self._unexplained: set[WorkerId] = set()
        """Workers that are gone, and for which this worker has not written the cause."""
        self._loops: set[int] = set()
        """Loops over batches that this journal has noted already."""
        self._undigested: list[dict[str, Any]] = []
        """What this worker says of the recoveries before the last step. It lacks the digest of the
        parameters after that step."""

    def begin(self, resumed: int | None) -> None:
        """Begin the trace. The first leader calls it once. ``resumed``: the step to go on with;
        None for a run that replaces an earlier trace."""
        self.trace.begin(resume=resumed is not None)
        # Rounds before this call may have set it from an earlier run's trace.
        self._due = resumed or 0

    def recovered(self, recovered: Recovered) -> None:
        """Note a recovery. Its line waits for the first step committed after it."""
        self._recovered.append(recovered)

    def complete(self, now: float) -> None:
        """Note that a round was completed at this time."""
        for recovered in self._recovered:
            recovered.complete = recovered.complete or now

    @property
    def wants_steps(self) -> bool:
        """True if the next step must be noted, for the trace or for a recovery."""
        return self.trace.active or bool(self._recovered)

    def chose(
        self,
        step: int,
        generation: int,
        choices: Sequence[Choice | None],
        arrays: Sequence[int] | None = None,
    ) -> None:
        """Note which way the sums of each array go, from the step after ``step`` on. A choice that
        is known is not told again. ``arrays``: numbers of the arrays, if these are some of all."""
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
        """Note that all workers follow another strategy from this step on. ``known``: why, if this
        worker decided it."""
        told = {
            "step": step,
            "generation": generation,
            "strategy": str(strategy),
            "strategy_name": strategy.name,
            "before": before.called,
            "why": known.get("why"),
            "figures": known.get("figures"),
        }
        self._changed = step, strategy, known.get("why")
        self._choices.clear()  # the data plane may have other arrays now
        self._chosen.append(("strategy", told))

    def surveyed(self, metrics: Metrics, decides: Strategy | None) -> None:
        """Note the figures of a survey for the trace, and what the policy decides for by them;
        None: it stays."""
        if not self.trace.active:
            return
        told = {
            "step": metrics.steps,
            "strategy": metrics.strategy.called,
            "decides": None if decides is None else decides.called,
            "figures": metrics.figures(),
        }
        self._chosen.append(("survey", told))

    def batches(self, step: int, loop: int, planned: Mapping[str, int]) -> None:
        """Note that the script goes through these batches from this step on, if that is new."""
        if loop not in self._loops:
            self._loops.add(loop)
            self._chosen.append(("batches", {"step": step, "loop": loop, **planned}))

    def follows(self, step: int, strategy: Strategy, why: str | None = None) -> None:
        """Tell the launcher which strategy is followed from this step on. The leader calls it."""
        self._channel.tell("follows", step=step, strategy=strategy.called, why=why)

    def step(
        self,
        number: int,
        step: int,
        describe: Callable[[], dict[str, Any]],
        gradients: int,
    ) -> None:
        """Note that ``step`` was committed in round ``number``, which is complete.

        ``describe`` returns the rest of its line. It names every worker, so it is called only on
        the worker that writes the line. ``gradients``: gradients that this worker has computed so
        far and that did not count.
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
            record = self._recovery(recovered, step, gradients)
            self._channel.tell("recovery", workers=len(recovered.after), **record)
            own = {key: value for key, value in record.items() if key not in ("lost", "verdict")}
            self._undigested.append({"at": recovered.complete, "worker": self._me, **own})
            records.append(("recovery", record))
            self._unexplained.update(record["lost"])
        self._recovered.clear()
        records += self._chosen
        self._chosen = []
        self._waiting.append(_Entry(number, step, records, describe, self._strategy()))

    def digested(self, digest: int | None) -> None:
        """Add the digest of the parameters after the last step; None: there is none. No worker had
        to wait for it."""
        said = None if digest is None else f"{digest:016x}"
        for fields in self._undigested:
            self.trace.write("recovered", **fields, digest=said)
        self._undigested.clear()
        if self._waiting and self._waiting[-1].digest is None:
            self._waiting[-1].digest = said

    def stable(self, number: int, leader: WorkerId) -> None:
        """Write what is stable, or drop it: round ``number`` is complete under ``leader``."""
        if leader != self._leader:
            self._leader, self._led_since = leader, number
            if leader == self._me:
                written = self.trace.take_over()
                self._due = 0 if written is None else written + 1
                if self._changed is not None:  # the old leader may have died before it told
                    self.follows(*self._changed)
        if leader != self._me:
            # This round is complete, so the leader has committed the one before. It was the leader
            # then only if that round came after the first one seen here. The first one may be the
            # repair of a round that it committed while another leader, now dead, was to write.
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
        if self._unexplained:
            self._explain()

    def _explain(self) -> None:
        """Write why workers are gone, once the launcher has said so; this may take some rounds."""
        for worker in sorted(self._unexplained):
            if (cause := self._channel.cause_of(worker)) is not None:
                self.trace.write("cause", worker=worker, cause=cause.kind, why=cause.why)
                self._unexplained.discard(worker)

    def await_causes(self, rest: Callable[[float], None]) -> None:
        """Wait, by ``rest``, until the launcher has said why workers are gone, but no longer than a
        second: a training may end right after a loss. The leader calls it, at the end. Blocking."""
        for _ in range(_TRIES):
            self._explain()
            if self._channel.mute or not (self._unexplained and self.trace.active):
                return
            rest(_BETWEEN_TRIES)

    def reach(self, step: int, strategy: str | None = None) -> None:
        """Write a gap if steps before this one are missing, as all that took part are lost. The
        leader calls it. ``strategy``: the one of this step, if it may differ from the present
        one."""
        if self._due < step:
            known = {"steps": step - self._due, "strategy_name": strategy or self._strategy()}
            self.trace.write("gap", step=self._due, **known)
            self._due = step

    def end(
        self, step: int, workers: Sequence[WorkerId], outcome: str, left_early: Sequence[int]
    ) -> None:
        """Write the training's end, and which batches were left early. The leader calls it."""
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

    def _recovery(self, recovered: Recovered, step: int, gradients: int) -> dict[str, Any]:
        lost = recovered.losses
        deaths = [at for at in map(self._channel.death_of, lost) if at is not None]
        death = min(deaths) if deaths else None
        repaired = recovered.verdict.repairs
        # A worker that computes when another one dies meets the loss when it comes to its round.
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
            "total_ms": _ms(death, recovered.complete),
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
    """Return the line of one step of a round, with what each slot brought."""
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
