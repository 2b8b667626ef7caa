"""What users ask of a running job (`control_socket`), and what comes of it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from spotmpi.errors import UsageError
from spotmpi.launch import control_messages
from spotmpi.launch.decoding import Message
from spotmpi.launch.head.fates import JobEnding
from spotmpi.launch.head.job_state import JobState
from spotmpi.launch.head.stalls import Standing
from spotmpi.launch.head.status_report import StatusReport
from spotmpi.launch.head.worker_orders import Orders
from spotmpi.launch.liveness import Silences
from spotmpi.launch.start.hosts_file import HostLine, parse

__all__ = ["ControlRequests"]

_LOG = logging.getLogger(__name__)


class Crewed(Protocol):
    """The workers, as far as requests go; more in `job.Workers`."""

    def progress(self) -> dict[int, Standing]:
        """How far those have come that live and train."""

    def silences(self) -> dict[str, Silences]:
        """How silent the other hosts were that are there, by name."""


class Growing(Protocol):
    """Where more workers come from. All say what comes of it, and may raise UsageError."""

    def add(self, host: HostLine) -> str:
        """Ask one more host for workers."""

    def news(self, name: str) -> str:
        """What has come of a host that was asked for: nothing yet, it is here, or why it is not."""

    def widen(self, name: str | None, workers: int) -> str:
        """Start more workers on a host that is there: the one of this name, or the only one."""


class ControlRequests:
    """Answers for one job; ``keeps``: it has a folder for checkpoints.

    ``part(worker, why)`` has a worker leave the others; without ``growing`` nobody can join.
    """

    def __init__(
        self,
        job: str,
        crew: Crewed,
        verdict: JobState,
        standing: StatusReport,
        keeps: bool,
        orders: Orders,
        part: Callable[[int, str], None],
        growing: Growing | None,
    ) -> None:
        self._orders = orders
        self._part = part
        self._growing = growing
        self._job = job
        self._crew = crew
        self._verdict = verdict
        self._standing = standing
        self._keeps = keeps

    def report(self, ending: JobEnding | None = None) -> control_messages.Report:
        """How the job stands, as `StatusReport` has it; ``ending`` if it has come to that."""
        fates, progress = self._verdict.fates, self._crew.progress()
        if ending is not None:
            fates = [replace(one, state="ended") if one.lives else one for one in fates]
        ending = ending or self._verdict.ending
        silences = self._crew.silences()
        return self._standing.report(self._job, fates, progress, silences, ending)

    def look(self) -> control_messages.Report:
        """The same now, and how fast it goes follows from it; to be called every second."""
        self._standing.look(self._verdict.fates, self._crew.progress())
        self._verdict.look()
        return self.report()

    def answer(self, question: Message) -> Message:
        """The answer to one of `control_messages.QUESTIONS`. Raises UsageError: what is wrong."""
        if not isinstance(question, control_messages.AskStatus):  # --watch asks every second
            _LOG.info("the user asks: %r", question)
        match question:
            case control_messages.AskStop(now=now):
                return control_messages.Said(self._end_now() if now else self._stop())
            case control_messages.AskShrink(worker=worker):
                return control_messages.Said(self._shrink(worker))
            case control_messages.AskGrow(line=line):
                (host,) = parse([line], "spotmpi grow")
                return control_messages.Said(self._room().add(host))
            case control_messages.AskHost(host=name):
                return control_messages.Said(self._room().news(name))
            case control_messages.AskMore(workers=workers, host=name):
                return control_messages.Said(self._room().widen(name, workers))
        return self.report()

    def _stop(self) -> str:
        """All stop together after the round that they are in, or at once where that is no gain."""
        if self._verdict.ending is not None or self._verdict.complete:
            raise UsageError("the job is ending already")
        training = self._verdict.training
        if not self._keeps or not training:
            self._verdict.ended_by_request("spotmpi stop")
            why = "nobody trains in it" if self._keeps else "it has no --checkpoint"
            return f"the job is ended at once: {why}"
        told = 0
        for worker in training:  # one is enough: they decide together
            told += self._orders.give(worker, stop=True)
        if not told:
            raise UsageError("no order can be written into the job's folder; end it with Ctrl-C")
        self._standing.stopping(True)
        return self._verdict.asked_to_stop()

    def _end_now(self) -> str:
        """All end at once, whatever is kept."""
        if self._verdict.ending is not None:
            raise UsageError("the job is ending already")
        self._verdict.ended_by_request("spotmpi stop --now", unkept=self._keeps)
        return "the job is ended at once"

    def refused(self) -> None:
        """The workers could not keep a checkpoint, and train on: they are not to stop any more."""
        for worker in self._verdict.training:
            self._orders.give(worker, stop=False)
        self._standing.stopping(False)

    def _room(self) -> Growing:
        """Where workers may come from now. Raises UsageError if none can come."""
        if self._growing is None:
            raise UsageError(
                "this job was started with -n alone: its workers talk through shared memory, where "
                "nobody can join them; start it with --replace to have it grow on this host, or "
                "with --hosts or --listen"
            )
        if self._verdict.ending is not None or self._verdict.complete:
            raise UsageError("the job is ending already")
        return self._growing

    def _shrink(self, worker: int) -> str:
        """One worker leaves, and the others train on."""
        fates = self._verdict.fates
        if not 0 <= worker < len(fates):
            raise UsageError(f"there is no worker {worker}; `spotmpi status` shows who is there")
        fate = fates[worker]
        where = f"worker {worker} on {fate.host}"
        if not fate.lives:
            raise UsageError(f"{where} has come to its end: {fate.state}")
        if not self._verdict.started:
            raise UsageError("not all workers are ready, and MPI cannot start without one of them")
        if self._verdict.learning(worker):
            self._part(worker, "spotmpi shrink")
            return f"{where} does not train yet and is killed"
        if set(self._verdict.training) - self._orders.leaving <= {worker}:
            raise UsageError(f"nobody would train on without worker {worker}: use `spotmpi stop`")
        self._part(worker, "spotmpi shrink")
        return f"{where} leaves before the next step"
