"""This process in its job: its trainings, one after another, and what connects it."""

from __future__ import annotations

import os
import sys
import time
import traceback
from typing import Any

from spotmpi import locks, settings
from spotmpi.errors import UsageError
from spotmpi.fabric import Fabric
from spotmpi.launcher_channel import IN_ROUND, IN_SCRIPT, LauncherChannel
from spotmpi.protocol import tables
from spotmpi.settings import Settings
from spotmpi.trace.records import Trace
from spotmpi.training.fault_injection import FaultInjection
from spotmpi.training.history import History
from spotmpi.training.joining_worker import enter
from spotmpi.training.keeping import checkpoint_folder
from spotmpi.training.participant import Participant
from spotmpi.training.state.training_state import TrainingState
from spotmpi.training.steps.timings import CpuTime
from spotmpi.training.worker_context import WorkerContext
from spotmpi.version import VERSION

__all__ = ["Process", "this_process"]

_BETWEEN_ABORTS = 0.5
_ABORTS_APART = 3
"""Worker n waits before MPI_Abort, for n (at most the second number) times the first in seconds."""


class Process:
    """A process that goes through one training after another, in the same job."""

    def __init__(self, fabric: Fabric | None = None) -> None:
        self.fabric = fabric
        """The fabric, once connected. MPI starts only once, and lasts until the process ends."""
        self.history = History()
        self._given: Settings
        """Settings of the training that it is in, or was in last."""
        self._locks: list[locks.Lock] = []
        """Locks on the checkpoint folder and the trace, if no launcher holds them."""

    def enter(self, training: TrainingState[Any]) -> Participant:
        """Begin the next training; return what this worker is in it. Collective, except for a
        newcomer. Raises UsageError if it cannot begin; then a job of several workers ends."""
        history, given = self.history, Settings.from_environ()
        history.enter()
        try:
            self._given = given = given.of_training(history.number)
            channel = LauncherChannel.open(given)
            channel.tell("begin", training=history.number)
            if given.newcomer is None:
                settings.check(given, given.world_size or 1)
            trace = _prepare(given, channel)
            if self.fabric is None:
                self.fabric = _connect(given, channel)
            members = history.membership or self.fabric.membership
            if training.choice.tells:
                tables.check_room(len(members))
            if given.job is None and self.fabric.me == members.ids[0]:
                self._locks = locks.hold(given.checkpoint, given.trace, script=sys.argv[0])
        except BaseException as error:
            history.give_up()
            if isinstance(error, (UsageError, locks.InUse)):
                _end_job(error, given)
            raise
        cpu = CpuTime() if trace.active else None
        faults = FaultInjection(given.revoke, self.fabric.me)
        known = channel, given, trace, VERSION, history, faults
        context = WorkerContext(self.fabric, *known, cpu=cpu)
        try:
            return self.fabric.run(enter(context, training))
        except Exception as error:
            self.let_go()
            self.give_up(error)
            raise
        except KeyboardInterrupt:
            self.let_go()
            history.give_up()
            raise

    def give_up(self, error: BaseException | None) -> None:
        """End an unfinished training. A script that runs alone may begin another one. An ``error``
        of the script ends the job."""
        if self._given.world_size is None and self._given.newcomer is None:
            self.history.give_up()
        if error is not None:
            _end_job(error, self._given)

    def let_go(self) -> None:
        """Let others use the training's files."""
        locks.release(self._locks)
        self._locks = []


_process = Process()


def this_process() -> Process:
    """Return the process that runs this script."""
    return _process


def _prepare(given: Settings, channel: LauncherChannel) -> Trace:
    """Check the checkpoint folder and open the trace. Raises UsageError."""
    try:
        if given.checkpoint is not None:
            checkpoint_folder.check_writable(given.checkpoint)
        return Trace(given.trace)
    except UsageError as error:
        channel.tell("unable", why=str(error))
        raise


def _connect(given: Settings, channel: LauncherChannel) -> Fabric:
    if given.newcomer is None and given.world_size is None:
        from spotmpi.fabric.solo import SoloFabric

        settings.check_alone()
        return SoloFabric()
    me = (given.rank or 0) if given.newcomer is None else given.newcomer
    channel.progressed(me, 0, 0, IN_ROUND)
    if given.newcomer is not None:
        if "mpi4py.MPI" in sys.modules:
            raise UsageError(
                f"worker {given.newcomer}: the script imports mpi4py.MPI, and so starts MPI, "
                "before it enters the Trainer; a worker that joins later must not: import it later"
            )
        # All that needs no other worker is done. Now the launcher may have a sponsor connect this
        # worker to MPI. It then says as which process MPI will know the worker.
        os.environ.update(channel.admission(given.newcomer))
    from spotmpi.fabric.mpi.unnamed_files import unnamed

    with unnamed():
        from spotmpi.fabric.deaths import Deaths, Listener
        from spotmpi.fabric.mpi.fabric import MpiFabric  # this starts MPI, which `Deaths` needs

        # On one host mpirun has started all workers together, and tells them of deaths.
        obituaries = channel.obituaries(me) if given.stand_in else None
        deaths = Deaths.found() if obituaries is None else Deaths()
        bury = None if deaths is None else deaths.announce
        follow = None
        if obituaries is not None and bury is not None:
            follow = Listener(obituaries, bury).follow
        fabric = MpiFabric(given.stand_in, given.newcomer, follow, bury)
    if given.newcomer is not None:
        channel.tell("connected")
    else:
        channel.progressed(me, 0, 0, IN_SCRIPT)  # such as to read a checkpoint
    return fabric


def _end_job(error: BaseException, given: Settings) -> None:
    """End the job for an error of this script. No worker may take it for a revocation."""
    if given.job is not None or given.world_size is None:
        return  # a launcher ends the job itself; a worker alone has no job to end
    worker = given.rank
    traceback.print_exception(error)
    print(f"spotmpi: worker {worker} raised the error above; the job ends", file=sys.stderr)
    sys.stderr.flush()
    from spotmpi.fabric.mpi.calls import abort  # this worker may not have connected yet

    # Often all workers come here at once. mpirun (5.0.11) hung forever in 1 of 17 jobs of 3
    # workers, when several asked it to abort within a millisecond. So one goes first.
    time.sleep(_BETWEEN_ABORTS * min(worker or 0, _ABORTS_APART))
    abort()
