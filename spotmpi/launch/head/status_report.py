"""How a job stands: what `spotmpi status` shows, collected by the launcher."""

from __future__ import annotations

import datetime
import os
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from spotmpi.exit_codes import MEANINGS
from spotmpi.launch import control_messages, messages
from spotmpi.launch.decoding import Message
from spotmpi.launch.head.fates import JobEnding, WorkerState
from spotmpi.launch.head.stalls import Standing, waited_for
from spotmpi.launch.liveness import Silences
from spotmpi.launch.showing.pace import Pace
from spotmpi.launcher_channel import AT_MESSAGES, IN_ROUND, IN_SCRIPT
from spotmpi.settings import Settings

__all__ = ["StatusReport"]

_DOING: Mapping[int, Literal["messages", "round", "script"]] = {
    IN_SCRIPT: "script",
    IN_ROUND: "round",
    AT_MESSAGES: "messages",
}


class StatusReport:
    """One job's. Local; knows the time. It began at ``since`` (of `time.time`), or now; it goes on
    from the step ``resumed``, if it does."""

    def __init__(
        self,
        script: str,
        arguments: Sequence[str] = (),
        settings: Settings | None = None,
        since: float | None = None,
        resumed: int | None = None,
    ) -> None:
        self._script = script
        self._settings = settings or Settings()
        self._training = 0
        """Which one of the script's."""
        self._arguments = tuple(arguments)
        self._since = time.time() if since is None else since
        self._resumed = resumed
        self._generation = 0
        self._checkpoint: control_messages.SavedAt | None = None
        self._kept = 0
        """Its step, if it is of the present training: told at once, and steps once a second."""
        self._unsaved: str | None = None
        self._follows: messages.Follows | None = None
        self._progress: dict[int, Standing] = {}
        self._gone: dict[int, float] = {}
        self._pids: dict[int, int] = {}
        self._stopping = False
        self._pace = Pace()

    def look(self, fates: Sequence[WorkerState], progress: Mapping[int, Standing]) -> None:
        """Take how far the workers have come that live; to be called every second."""
        begun = {w: one for w, one in _known(fates, progress).items() if not fates[w].comes}
        self._pace.see(time.monotonic(), begun)

    def told(self, worker: int, said: Message) -> None:
        """Take what a worker said."""
        match said:
            case messages.Runs(pid=pid):
                self._pids[worker] = pid
            case messages.Begin(training=training):
                if training > self._training:
                    self._training, self._kept = training, 0
            case messages.Recovery() | messages.Change():
                self._generation = max(self._generation, said.generation)
            case messages.Follows():
                known = self._follows  # and why; the next leader tells it again, without that
                if known is None or (known.step, known.strategy) != (said.step, said.strategy):
                    self._follows = said
            case messages.Checkpoint():
                self._checkpoint = control_messages.SavedAt(said.step, said.path)
                self._kept = said.step
                self._unsaved = None
            case messages.Unsaved(why=why):
                self._unsaved = why

    def gone(self, worker: int) -> None:
        """A worker has come to its end now."""
        self._gone.setdefault(worker, time.time())

    def stopping(self, on: bool) -> None:
        """The workers were ordered to stop, or the order was taken back."""
        self._stopping = on

    def report(
        self,
        job: str,
        fates: Sequence[WorkerState],
        progress: Mapping[int, Standing],
        silences: Mapping[str, Silences],
        ending: JobEnding | None = None,
    ) -> control_messages.Report:
        """Return all that is known.

        ``progress`` is of workers that live, ``silences`` of hosts that are there.
        """
        now = time.monotonic()
        known = _known(fates, progress)
        training = {w: one for w, one in known.items() if fates[w].state == "training"}
        self._progress.update({w: one for w, one in known.items() if not fates[w].comes})
        last = max(self._progress.values(), key=_steps, default=None)
        step = self._resumed if last is None else max(last.steps, self._kept)
        whole = None if last is None else last.measured.whole or None
        speed = self._pace.speed(now)
        left = None
        if speed is not None and speed.steps and step is not None and whole is not None:
            left = max(0, whole - step) / speed.steps
        waits = {one.worker: one.waited for one in waited_for(training, now)}
        return control_messages.Report(
            job=job,
            script=self._script,
            arguments=self._arguments,
            host=platform.node(),
            launcher=os.getpid(),
            since=_moment(self._since),
            seconds=round(time.time() - self._since, 3),
            generation=self._generation,
            step=step,
            checkpoint=self._checkpoint,
            unsaved=self._unsaved,
            stopping=self._stopping,
            workers=tuple(
                self._worker(worker, fate, known.get(worker), waits.get(worker), now)
                for worker, fate in enumerate(fates)
            ),
            hosts=tuple(
                control_messages.HostReport(
                    host, _ms(one.longest), _ms_if(one.recent), _ms(one.allowed)
                )
                for host, one in silences.items()
            ),
            ending=None if ending is None else _end(ending),
            loss=None if last is None else last.loss,
            strategy=None if self._follows is None else self._follows.strategy,
            why=None if self._follows is None else self._follows.why,
            samples=self._pace.samples or None,
            steps_in_all=whole,
            steps_per_second=None if speed is None else round(speed.steps, 6),
            samples_per_second=None if not (speed and speed.samples) else round(speed.samples, 6),
            seconds_to_go=None if left is None else round(left, 3),
            trace=_path(self._settings.of_training(self._training).trace),
        )

    def _worker(
        self,
        worker: int,
        fate: WorkerState,
        standing: Standing | None,
        waited: float | None,
        now: float,
    ) -> control_messages.WorkerReport:
        last, gone = self._progress.get(worker), self._gone.get(worker)
        doing = standing if fate.state == "training" else None
        inside = standing if doing is not None or fate.comes else None
        if inside is not None and inside.doing != IN_SCRIPT:
            inside = None
        return control_messages.WorkerReport(
            worker=worker,
            host=fate.host,
            state=fate.state,
            how=fate.how or None,
            when=None if gone is None else _moment(gone),
            step=None if last is None else last.steps,
            doing=None if doing is None else _DOING[doing.doing],
            doing_seconds=None if doing is None else round(now - doing.since, 3),
            awaited_seconds=None if waited is None else round(waited, 3),
            quiet_seconds=None if inside is None else round(inside.quiet, 3),
            busy=None if inside is None else inside.busy or None,
            pid=self._pids.get(worker) if fate.lives else None,
            computing_seconds=None if last is None else round(last.measured.computing, 3),
            waiting_seconds=None if last is None else round(last.measured.waiting, 3),
            stalled_seconds=None if last is None else round(last.measured.stalled, 3),
        )


def _known(fates: Sequence[WorkerState], progress: Mapping[int, Standing]) -> dict[int, Standing]:
    """Without workers whose fate is not known yet."""
    return {worker: one for worker, one in progress.items() if worker < len(fates)}


def _steps(standing: Standing) -> int:
    return standing.steps


def _end(ending: JobEnding) -> control_messages.EndReport:
    meaning = MEANINGS.get(ending.code, f"ended by signal {ending.code - 128}")
    return control_messages.EndReport(ending.code, meaning, ending.sentence)


def _path(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 1)


def _ms_if(seconds: float | None) -> float | None:
    return None if seconds is None else _ms(seconds)


def _moment(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")
