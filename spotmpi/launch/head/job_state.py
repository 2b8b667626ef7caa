"""What the fates of the workers mean for the job: pure, fed by the launcher.

SIGKILL and SIGTERM are what a host that is taken away does to a worker: revocations. So is a crash
of MPI, unless the worker that comes for it crashes in the same step at the same place. Everything
else is a bug of the script, and a bug ends the job before any survivor starts to recover from it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable

from spotmpi.exit_codes import (
    EXIT_ALL_REVOKED,
    EXIT_BUG,
    EXIT_ENDED,
    EXIT_NOT_FINITE,
    EXIT_NOT_STARTED,
    EXIT_REQUEUE,
    EXIT_UNKEPT,
)
from spotmpi.launch import messages
from spotmpi.launch.decoding import Message
from spotmpi.launch.head.fates import JobEnding, Worker, WorkerState
from spotmpi.launch.processes import was_revoked
from spotmpi.launch.showing.broken_trainings import BrokenTrainings
from spotmpi.launch.showing.checkpoint_reports import CheckpointReports
from spotmpi.launch.showing.recoveries import Recoveries
from spotmpi.launch.wording import count, milliseconds, remaining, signal_name
from spotmpi.launcher_channel import Cause
from spotmpi.settings import Revocation

__all__ = ["JobState"]

_RID = "to be rid of a worker say `spotmpi shrink --worker W`"
_OF_ALL = ", and to have none replaced start the job with --no-replace"


class JobState:
    """Collects what happens; ``ending`` is set as soon as the job must be ended.

    ``lines`` is what to tell the user, in order; the launcher takes them out and prints them.
    ``keeps``: there is a folder for checkpoints. ``again``: the launcher itself starts the job
    again when every worker is lost. ``replace_asked``: the user asked for workers to be replaced.
    """

    def __init__(
        self, keeps: bool = False, again: bool = False, replace_asked: bool = False
    ) -> None:
        self._keeps = keeps
        self._again = again
        self._rid = _RID if replace_asked else _RID + _OF_ALL
        self._workers: list[Worker] = []
        self._started = False
        self._changes: set[int] = set()
        self._followed_since: int | None = None
        """The step from which on the present strategy is followed."""
        self._recoveries = Recoveries(self._recovered)
        self._checkpoints = CheckpointReports(lambda line: self.lines.append(line))
        self._broken = BrokenTrainings(lambda line: self.lines.append(line))
        self._ends_broken: str | None = None
        """What a training has come to its end with that is not finite."""
        self._asked = False
        self._said: set[str] = set()
        """What workers had for the user: often all of them say the same."""
        self.ending: JobEnding | None = None
        self.lines: list[str] = []

    def expect(self, hosts: Iterable[str]) -> None:
        """Take in workers, numbered from 0, by their hosts."""
        self._workers += map(Worker, hosts)

    def newcomer(self, host: str) -> int:
        """Take in one that comes later; returns its id."""
        self._workers.append(Worker(host, late=True, newcomer=True))
        return len(self._workers) - 1

    def host_of(self, worker: int) -> str:
        """Where a worker is."""
        return self._workers[worker].host

    def is_newcomer(self, worker: int) -> bool:
        """Whether it came later than the others, whatever has become of it."""
        return self._workers[worker].late

    def turned_away(self, worker: int) -> bool:
        """Whether a newcomer has come to its end without ever training."""
        return self._workers[worker].end == "turned away"

    def revoked(self, worker: int) -> bool:
        """Whether a worker that trained has gone without asking."""
        return self._workers[worker].end == "revoked"

    def learning(self, worker: int) -> bool:
        """Whether a newcomer does not train yet, and lives."""
        return self._workers[worker].newcomer and not self._workers[worker].end

    @property
    def complete(self) -> bool:
        """Whether every worker has come to its end; newcomers that do not train do not count."""
        workers = self._workers
        return bool(workers) and all(worker.end or worker.newcomer for worker in workers)

    @property
    def stopping(self) -> bool:
        """Whether a worker asked for the job to be requeued, so that the others must follow."""
        return any(worker.end == "requeue" for worker in self._workers)

    @property
    def started(self) -> bool:
        """Whether all workers have been ready, so that losses are recovered from."""
        return self._started

    @property
    def goes_on(self) -> bool:
        """Whether nobody has come to the end of the training, and nobody was asked to stop."""
        over = {one.state for one in self._workers} & {"trained", "finished", "stopped"}
        return not (over or self._asked or self.ending)

    @property
    def training(self) -> list[int]:
        """The workers that live and are in their training."""
        fates = enumerate(self.fates)
        return [worker for worker, fate in fates if fate.state == "training"]

    @property
    def joint(self) -> list[int]:
        """Workers that live and that others may have to wait for: they begin, train or learn."""
        return [
            worker
            for worker, one in enumerate(self._workers)
            if not (one.end or one.done) and (one.admitted or not one.newcomer)
        ]

    @property
    def apart(self) -> list[int]:
        """Newcomers that live and that nobody has to wait for yet."""
        return [
            worker
            for worker, one in enumerate(self._workers)
            if one.newcomer and not (one.end or one.admitted)
        ]

    @property
    def fates(self) -> list[WorkerState]:
        """Of all workers, by their ids."""
        return [WorkerState(one.host, one.state, one.how) for one in self._workers]

    def to_part(self, worker: int, missed: Collection[int]) -> dict[int, str]:
        """Whom to revoke, and why, when a worker takes others for dead that the head hears.

        Whoever misses more than half of all goes itself.
        """
        training = self.training
        living = [one for one in training if one in missed]
        if worker not in training:
            return {}
        if 2 * len(living) > len(training):
            return {worker: f"it does not reach {count(len(living))}, though the head does"}
        return dict.fromkeys(living, f"worker {worker} does not reach it, though the head does")

    def blame(self, worker: int, why: str, kind: str = "killed") -> None:
        """Say why a worker is going to be killed, which will count as its revocation, of this
        ``kind`` (as `Cause` has it). The first reason counts: others may follow from it."""
        if not self._workers[worker].why:
            self._workers[worker].why, self._workers[worker].kind = why, kind

    def replaces(self, worker: int, lost: int) -> None:
        """Take the news that a newcomer was started in the place of a worker that was lost."""
        before = self._workers[lost]
        self._workers[worker].replaces = before.replaces or not before.newcomer
        self._workers[worker].before = before
        line = f"{self._named(worker)} starts in place of worker {lost}"
        if before.end == "revoked" and self._rid:
            line += f"; {self._rid}"
            self._rid = ""  # once
        self.lines.append(line)

    def not_replaced(self, worker: int, tries: int, lasting: float) -> None:
        """Take the news that a place stays empty: so many in a row did not last there."""
        host = self._workers[worker].host
        self.lines.append(
            f"nobody is started any more in place of {self._named(worker)}: {tries} times in a row "
            f"a worker was lost there before the last newcomer had trained for {lasting:.0f} s, or "
            "because it hung; find out why (is there too little memory?), then have another "
            f"started by `spotmpi grow --host {host} --workers 1`"
        )

    def asked_to_stop(self, by: str | None = None) -> str:
        """Take the news that the workers were ordered to stop; returns what happens now. ``by``:
        what has ordered it, if users are to read that."""
        then = "the workers stop after this step, with a checkpoint"
        if self._checkpoints.ends:
            then = "the training is over, and its last checkpoint is waited for"
        if by is not None or not self._asked:
            self.lines.append(f"{by or 'asked to stop'}: {then}")
        self._asked = True
        return then

    def refused_to_stop(self, again: bool) -> None:
        """Take the news that they go on, as they could keep nothing. ``again``: they try again
        after each step."""
        if self._asked and not again:
            self._asked = False
            self.lines.append(
                f"the workers did not stop: {self._checkpoints.why_not}; they train on. Make room "
                "and say `spotmpi stop` again, or end the job without a checkpoint: `spotmpi stop "
                "--now`"
            )

    def mute(self, on: bool) -> None:
        """Take the news that mpirun does not answer any more, or that it does again."""
        self.lines.append(
            "mpirun does not answer any more: nobody can join; those that train need nothing of it"
            if on
            else "mpirun answers again"
        )

    def ended_by_request(self, why: str, unkept: bool = False) -> None:
        """End the job at once because somebody asked for it; ``unkept``: without a checkpoint that
        there could have been."""
        code, how = (EXIT_UNKEPT, ", without a checkpoint") if unkept else (EXIT_ENDED, "")
        self._end(
            code, f"{why}; the job was ended{how}, and every worker in it{self._what_is_kept()}"
        )

    def told(self, worker: int, said: Message) -> None:
        """Take what a worker said."""
        if self.ending is not None:
            return  # what happens while all are being killed is of no interest
        state = self._workers[worker]
        match said:
            case messages.Begin(training=training):
                state.began, state.done, state.training = True, False, training
                for other, left in enumerate(self._workers):
                    if left.end == "finished" and self._is_ahead(state, left):
                        self._left_early(other)
            case messages.Waiting():
                state.waits = True
            case messages.Trains(step=step):
                state.newcomer, state.waits, state.since = False, False, step
                state.joined = f"{self._named(worker)} has joined: it trains from step {step} on"
                if state.admitted:
                    self._tell_joined(worker)
            case messages.Withdrawn(why=why):
                state.why = why
            case messages.Parted():
                state.parted = True
            case messages.Change():
                self._changed(said)
            case messages.Follows():
                self._follows(said)
            case messages.Ready():
                state.ready = True
                first = [one for one in self._workers if not one.newcomer]
                self._started = self._started or all(one.ready for one in first)
            case messages.Underway():
                for one in self._workers:
                    one.ready = one.ready or not one.newcomer
                self._started = True
            case messages.Unkept():
                self._checkpoints.give_up()
            case messages.NotFinite():
                self._broken.told(state.training, self._named(worker), said)
            case messages.EndsNotFinite(why=why):
                self._ends_broken = self._ends_broken or why
            case messages.Unable(why=why):
                self._unable(worker, why)
            case messages.Done():
                self._recoveries.end()
                state.done = True
                self._tell_joined(worker)
            case messages.Left(code=code):
                self._left_with(worker, code)
            case messages.Stopped(seconds=seconds):
                why = f"it was stopped for {milliseconds(1e3 * seconds)}"
                self.blame(worker, why, "stopped")
            case messages.Failed(traceback=traceback):
                self._failed(worker, traceback)
            case messages.Recovery():
                self._recoveries.told(worker, said)
            case messages.Checkpoint():
                self._checkpoints.saved(said)
            case messages.Unsaved():
                self._checkpoints.not_saved(said)
            case messages.Crashed(stacks=stacks, step=step):
                state.crash = stacks.rstrip("\n"), step
            case messages.Says(text=text) if text not in self._said:
                self._said.add(text)
                self.lines.append(f"{self._named(worker)}: {text}")
            case messages.Garbled(why=why) if not state.garbled:
                state.garbled = True  # once: it may be a loop that says so
                self.lines.append(
                    f"{self._named(worker)} wrote something into its channel to the launcher that "
                    f"is left out ({why}); does its script use file descriptors of others?"
                )

    def ended(self, worker: int, status: int, in_mpi: bool = False) -> None:
        """Take the end of a worker's process; ``status`` is as waitpid() has it. ``in_mpi``: it has
        crashed there."""
        state = self._workers[worker]
        self._recoveries.end()
        self._tell_joined(worker)
        if state.parted:  # nobody needs it any more, however it ends
            state.end = "left"
            return
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            stacks = "" if state.crash is None else f"{self._named(worker)}:\n{state.crash[0]}"
            if in_mpi and not state.crashed_again:
                self.lines.append(f"MPI crashed on {stacks}")
                self.lost(worker, f"{signal_name(number)} in MPI", "crashed")
            elif was_revoked(status) or state.newcomer:
                self.lost(worker, signal_name(number))
            else:
                self._bug(
                    f"{self._named(worker)} died by {signal_name(number)}, "
                    "which is a crash and no revocation",
                    stacks,
                )
            return
        code = os.WEXITSTATUS(status)
        if state.newcomer:
            self._turned_away(worker, state.why or f"it ended with code {code}")
        elif code == EXIT_REQUEUE:
            state.end = "requeue"
        elif code != 0:
            self._left_with(worker, code)
        elif state.began and not state.done:
            self._left_early(worker)
        else:
            state.end = "finished"
            if any(self._is_ahead(other, state) for other in self._workers):
                self._left_early(worker)

    def cause_of(self, worker: int) -> Cause:
        """Why a worker that was revoked is gone."""
        state = self._workers[worker]
        return Cause(state.kind, state.how)

    def lost(self, worker: int, how: str, kind: str = "killed", stays: bool = False) -> None:
        """Take the revocation of a worker; ``how`` names the signal. ``stays``: the job's only host
        does, where just the agent was killed: the job can start again from a checkpoint."""
        self._again = self._again or (stays and self._keeps)
        state = self._workers[worker]
        if state.end:
            return
        self._recoveries.end()
        self._tell_joined(worker)
        if state.parted:
            state.end = "left"
            return
        how = state.why or how
        if state.newcomer:
            self._turned_away(worker, how)
            return
        state.end, state.how = "revoked", how
        state.kind = state.kind or kind
        if not self._started:
            # The others would wait for it in MPI's start for ever.
            self._end(
                EXIT_NOT_STARTED,
                f"{self._named(worker)} was lost ({how}) before all workers were ready",
                again=True,
            )
            return
        rest = sum(not one.end for one in self._members)
        self.lines.append(f"{self._named(worker)} was revoked ({how}); {self._remaining(rest)}")

    def runtime_gave_up(self) -> None:
        """Take the news that mpirun ended the job without being asked to.

        It does so when a newcomer's start fails, as one does when the others end MPI meanwhile.
        Once all have ended their training that harms nobody: what remains are their scripts.
        """
        if self._started and all(one.done or one.end for one in self._members):
            return
        if self._started:
            self._bug("Open MPI ended the job, as it does when a script calls Abort", runtime=True)
        else:
            self.not_started("mpirun failed before all workers were ready")

    def runtime_killed(self, how: str) -> None:
        """Take the death of mpirun, by whatever signal, with workers still there."""
        if self._started:
            self._all_lost(f"mpirun was killed ({how}), and no worker can go on without it")
        else:
            self._end(
                EXIT_NOT_STARTED,
                f"mpirun was killed ({how}) before all workers were ready; start the job again",
            )

    def too_few(self, why: str) -> None:
        """End the job because too few of its hosts are there."""
        self._end(EXIT_NOT_STARTED, f"{why}; nothing was started")

    def not_started(self, why: str) -> None:
        """End the job because it did not come into being."""
        self._end(
            EXIT_NOT_STARTED,
            f"{why}; `spotmpi doctor` checks the installation",
            runtime=True,
        )

    def not_stopping(self, why: str) -> None:
        """End a job of which one part stopped to be requeued while the other went on."""
        self._end(EXIT_REQUEUE, f"{why}; repeat the command with --resume")

    def stuck(self, why: str, by_script: bool) -> None:
        """End the job because nobody in it goes on; ``by_script``: the script must be mended."""
        if by_script:
            self._bug(why)
        else:
            self._all_lost(why)

    def interrupted(self, how: str, number: int) -> None:
        """End the job because the launcher got a signal."""
        self._end(
            128 + number, f"{how}: the job was ended, and every worker in it{self._what_is_kept()}"
        )

    def unrevoked(self, revocations: Iterable[Revocation]) -> list[str]:
        """Return what to say of rehearsals whose step never came, once every worker has ended."""
        ends = [worker.end for worker in self._workers]
        said = []
        for one in revocations:
            if living := [w for w in one.workers if ends[w] in ("finished", "requeue")]:
                names = f"worker{'s' * (len(living) > 1)} {', '.join(map(str, living))}"
                said.append(
                    f"{names} did not die in step {one.step} (--revoke {one}): the training was "
                    "over before, or began after it; steps count from 0"
                )
        return said

    def conclude(self) -> JobEnding:
        """Return how the job ended, once every worker has."""
        if self.ending:
            return self.ending
        ends = [worker.end for worker in self._workers]
        if "requeue" in ends and self._asked:
            return JobEnding(
                EXIT_REQUEUE,
                "the workers stopped on request (code 75): "
                "repeat the command with --resume to go on",
            )
        if "requeue" in ends:
            return JobEnding(
                EXIT_REQUEUE,
                "the workers stopped and ask to be started again (code 75): "
                "repeat the command with --resume once there are enough workers",
            )
        if "finished" not in ends:
            advice = self._advice(", and the job ended; ")
            why = "every worker was revoked"
            return JobEnding(EXIT_ALL_REVOKED, why + advice, again=self._again)
        if self._ends_broken is not None:
            return JobEnding(
                EXIT_NOT_FINITE,
                f"the training is over, and {self._ends_broken}: --resume goes on from the last "
                "finite checkpoint, if there is one",
            )
        if self._checkpoints.given_up:
            return JobEnding(
                EXIT_UNKEPT,
                "the training is over, but its end could not be kept: "
                f"{self._checkpoints.why_not}; what was trained since the last checkpoint is lost",
            )
        finished, revoked, left = map(ends.count, ("finished", "revoked", "left"))
        if revoked or left:
            were = "was" if revoked == 1 else "were"
            gone = [f"{revoked} {were} revoked"] * bool(revoked) + [f"{left} left"] * bool(left)
            return JobEnding(0, f"{count(finished)} finished, {', '.join(gone)}")
        return JobEnding(0, "")

    def _end(
        self, code: int, sentence: str, text: str = "", runtime: bool = False, again: bool = False
    ) -> None:
        if self.ending is None:  # the first cause counts; what follows is its consequence
            self.ending = JobEnding(code, sentence, text, runtime, again)

    def _advice(self, joint: str) -> str:
        """What to do where no worker remains; nothing, if the launcher does it."""
        advice = "start it again, with --resume if it has a checkpoint"
        return "" if self._again else joint + advice

    def _what_is_kept(self) -> str:
        """For who ends a job amid its training."""
        if not self._started:
            return ""
        if (step := self._checkpoints.last) is None:
            if self._keeps:
                return "; no checkpoint was written since it began"
            return "; nothing of the training is kept: --checkpoint DIR keeps it"
        return (
            f"; what came after step {step} is lost: repeat the command with --resume to go on "
            "from there"
        )

    def _all_lost(self, why: str) -> None:
        self._end(EXIT_ALL_REVOKED, why + self._advice("; "), again=self._again)

    def _bug(self, what: str, text: str = "", runtime: bool = False) -> None:
        self._end(EXIT_BUG, f"{what}; the job was ended, fix the script", text, runtime)

    @property
    def _members(self) -> list[Worker]:
        """All that take part, or took part, in rounds."""
        came = (one for one in self._workers if one.admitted or not one.newcomer)
        return [one for one in came if one.end != "turned away"]

    def _remaining(self, workers: int) -> str:
        return remaining(workers, sum(not one.replaces for one in self._members))

    def _named(self, worker: int) -> str:
        return f"worker {worker} on {self._workers[worker].host}"

    def _turned_away(self, worker: int, why: str) -> None:
        """A newcomer has come to its end before it trained: that harms nobody."""
        self._workers[worker].end = "turned away"
        self._workers[worker].how = why
        if not self._asked:  # all stop, and nobody waits for it any more
            self.lines.append(f"{self._named(worker)} did not join: {why}")

    def _changed(self, said: messages.Change) -> None:
        if said.generation in self._changes:
            return
        self._changes.add(said.generation)
        pause = "unknown" if said.pause_ms is None else milliseconds(said.pause_ms)
        for worker in self._known(said.left):
            self.lines.append(
                f"{self._named(worker)} left before step {said.step}: "
                f"{self._remaining(said.workers)} (pause {pause})"
            )
        for worker in self._known(said.joined):
            self.lines.append(
                f"{self._named(worker)} was admitted before step {said.step} "
                f"(pause {pause}), and learns"
            )
            self._workers[worker].admitted = True
            self._tell_joined(worker)

    def _follows(self, said: messages.Follows) -> None:
        if said.step != self._followed_since and self._followed_since is not None:
            why = "" if said.why is None else f": {said.why}"
            self.lines.append(f"from step {said.step} on the strategy is {said.strategy}{why}")
        self._followed_since = said.step

    def _tell_joined(self, worker: int) -> None:
        """Say that a newcomer trains, if that waits: those who admitted it may be heard later."""
        state = self._workers[worker]
        if state.joined:
            self.lines.append(state.joined)
            state.joined = ""

    def _known(self, workers: Iterable[int]) -> list[int]:
        return [worker for worker in workers if worker < len(self._workers)]

    def _failed(self, worker: int, traceback: str) -> None:
        where = self._named(worker)
        if self._workers[worker].newcomer:
            self._workers[worker].why = f"its script failed\n{traceback}".rstrip()
            return
        self._bug(f"the script failed on {where}", text=f"{where}:\n{traceback}")

    def _left_with(self, worker: int, code: int) -> None:
        if self._workers[worker].newcomer or self._workers[worker].parted:
            return  # its end will be told
        self._bug(f"{self._named(worker)} ended with code {code}", runtime=True)

    @staticmethod
    def _is_ahead(one: Worker, other: Worker) -> bool:
        """Whether it is in a training that the other one was never in."""
        trains = one.began and not one.newcomer
        return trains and (not other.began or one.training > other.training)

    def _left_early(self, worker: int) -> None:
        self._bug(
            f"{self._named(worker)} ended early, without an error, while others train: "
            "every worker must go through the whole training"
        )

    def _recovered(self, said: messages.Recovery) -> None:
        names = ", ".join(map(str, said.lost))
        self.lines.append(
            f"recovered from the loss of worker{'s' * (',' in names)} {names} at step {said.step}"
            + (f" in {milliseconds(said.total_ms)}" if said.total_ms is not None else "")
            + f": {self._remaining(said.workers)} ({said.verdict}, generation {said.generation})"
        )

    def look(self) -> None:
        """To be called each second."""
        self._recoveries.look()

    def _unable(self, worker: int, why: str) -> None:
        """Nothing is trained yet, and nothing wrong with the script."""
        if self._workers[worker].newcomer:
            self._workers[worker].why = why
        else:
            self._end(EXIT_NOT_STARTED, f"{self._named(worker)} cannot begin: {why}")
