"""An agent's child: it forks the worker, watches it, and says what becomes of it.

A worker that is revoked takes its wrapper along, by SIGKILL. A worker that fails in any other way
leaves its wrapper alive, and the launcher ends the job in peace.

Run as a file by an `agent`, in the environment of the worker: ``python wrapper.py FOLDER TEXT``,
where the text is for people who look at processes.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import sys
import time
from array import array
from contextlib import closing, suppress
from typing import NoReturn

_HERE = os.path.dirname(os.path.abspath(__file__))
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))

if __name__ == "__main__":
    # Run as a file, this folder heads the module path. The launcher's own spotmpi must, for now:
    # there may be another one installed.
    sys.path[0] = _ROOT

from pathlib import Path  # noqa: E402 - the path must be right first

from spotmpi import job_folder  # noqa: E402
from spotmpi.launch import log_lines, processes  # noqa: E402
from spotmpi.launch import wrapper_socket as wire  # noqa: E402
from spotmpi.launch.host import crashes, worker  # noqa: E402
from spotmpi.launcher_channel import progress, record_death  # noqa: E402
from spotmpi.settings import DETECT_MS, Settings  # noqa: E402

_LOG = logging.getLogger("spotmpi.launch.host.wrapper")  # run as a file, it has no such name
_HANDLED = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD}
_PATIENCE = 5.0
"""Seconds to wait for killed processes to be gone."""


def main(folder: Path) -> NoReturn:
    """Be the wrapper of the worker that the environment names: a newcomer, or one of the first."""
    newcomer = Settings.from_environ().newcomer
    me = int(os.environ["OMPI_COMM_WORLD_RANK"]) if newcomer is None else newcomer
    processes.name_this(f"wrapper-{me}")
    processes.adopt_orphans()
    signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
    try:
        link = wire.connect(folder)
    except OSError:
        os._exit(1)  # the agent has ended
    job_folder.hold(folder)
    out, error = os.pipe(), os.pipe()
    log = [os.pipe()] if Settings.from_environ().log else []
    if log:  # from here to the worker's end
        log_lines.keep(log_lines.to_pipe(log[0][1]))
    # Before the fork: nothing that the worker tells may overtake its wrapper's hello.
    link.sendmsg(
        [wire.encode("hello", worker=me, wrapper=os.getpid())],
        [
            (
                socket.SOL_SOCKET,
                socket.SCM_RIGHTS,
                array("i", [reading for reading, _ in (out, error, *log)]),
            )
        ],
    )
    wrapper, report = os.getpid(), crashes.new_report()
    child = os.fork()
    if child == 0:
        processes.die_with_parent(wrapper)
        os.setpgid(0, 0)  # what is sent to the wrapper's group is not for us
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
        _redirect(out[1], error[1])
        processes.name_this(f"spotmpi-{me}")
        wire.say(link, wire.encode("runs", pid=os.getpid()))
        worker.main(folder, link.fileno(), report)
    _LOG.info("worker %d is process %d", me, child)
    for descriptor in (*out, *error, *(reading for reading, _ in log)):
        os.close(descriptor)
    _Watch(me, child, folder, link, report).run()


class _Watch:
    """The wrapper's wait for the first thing that happens to its worker or agent."""

    def __init__(self, me: int, child: int, folder: Path, link: socket.socket, report: int) -> None:
        self._me = me
        self._child = child
        self._folder = folder
        self._link = link
        self._report = report
        self._limit = (Settings.from_environ().detect_ms or DETECT_MS) / 1e3
        self._stopped: float | None = None
        """When the worker was stopped (SIGSTOP), if it has not gone on since."""

    def run(self) -> NoReturn:
        death = os.pidfd_open(self._child)
        signals = processes.signals(_HANDLED)
        poll = select.poll()
        for descriptor in (death, signals, self._link.fileno()):
            poll.register(descriptor, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll(self._patience())}
            # A death first: it is what others wait for.
            if death in ready:
                self._mourn()
            if self._link.fileno() in ready:
                self._obey()
            if signals in ready:
                self._signalled(signals)
            if self._patience() == 0.0:
                self._give_up()

    def _mourn(self) -> NoReturn:
        _, status = os.waitpid(self._child, 0)
        at = time.monotonic()
        lost_in_mpi = False
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) in crashes.SIGNALS:
            stacks = crashes.read(self._report)
            lost_in_mpi = crashes.in_mpi(stacks)
            wire.say(self._link, wire.encode("crashed", stacks=stacks, step=self._step()))
        revoked = lost_in_mpi or processes.was_revoked(status)
        if revoked:
            record_death(str(self._folder), self._me, at)
        ended = wire.encode("ended", status=status, at=at, in_mpi=lost_in_mpi)
        wire.say(self._link, ended)
        _LOG.info("worker %d ended with %d", self._me, os.waitstatus_to_exitcode(status))
        if revoked:
            self._vanish()
        processes.end_descendants(_PATIENCE)
        self._await_leave()

    def _step(self) -> int | None:
        """To which the worker had come, if it trains."""
        with suppress(OSError), closing(progress(self._folder)) as board:
            said = board.read(self._me)
            return None if said is None else said.steps
        return None

    def _vanish(self) -> NoReturn:
        """Die as the worker died.

        What the worker leaves behind is killed first, but not waited for: the agent inherits
        and buries it. Without an agent there is no haste, and nobody else to clean up.
        """
        if self._deserted():
            self._leave_nothing()
        processes.kill_descendants()
        os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()
        raise AssertionError("outlived SIGKILL")

    def _obey(self) -> None:
        message = self._receive()
        if message == wire.END:
            processes.end_descendants(_PATIENCE)
            wire.say(self._link, wire.encode("cleared"))
            self._await_leave()

    def _await_leave(self) -> NoReturn:
        while self._receive() != wire.LEAVE:
            pass
        os._exit(0)

    def _receive(self) -> bytes:
        """Return the launcher's next word. Without a launcher, clean up after everybody."""
        try:
            message = self._link.recv(64)
        except OSError:
            message = b""
        if not message:
            self._leave_nothing()
        return message

    def _deserted(self) -> bool:
        """Whether the launcher is gone. Does not block, and takes no word of its."""
        try:
            return not self._link.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def _leave_nothing(self) -> NoReturn:
        processes.end_descendants(_PATIENCE)
        job_folder.remove(self._folder)
        os._exit(1)

    def _patience(self) -> float | None:
        """Milliseconds for which a worker that is stopped may stay so."""
        if self._stopped is None:
            return None
        return 1e3 * max(0.0, self._stopped + self._limit - time.monotonic())

    def _give_up(self) -> None:
        """The worker holds up all others, and may never go on: it is as good as revoked."""
        _LOG.info("worker %d was stopped for %.3f s and is killed", self._me, self._limit)
        wire.say(self._link, wire.encode("stopped", seconds=self._limit))
        self._stopped = None
        processes.kill(self._child)

    def _look_at_child(self) -> None:
        changes = os.WSTOPPED | os.WCONTINUED | os.WNOHANG
        with suppress(ChildProcessError):  # it has ended, which its descriptor will tell
            while (change := os.waitid(os.P_PID, self._child, changes)) is not None:
                self._stopped = time.monotonic() if change.si_code == os.CLD_STOPPED else None

    def _signalled(self, signals: int) -> None:
        number, sender = processes.next_signal(signals)
        if number != signal.SIGCHLD:
            name = signal.Signals(number).name
            _LOG.info("the wrapper of worker %d got %s from process %d", self._me, name, sender)
        if number == signal.SIGCHLD:
            self._look_at_child()
        if number == signal.SIGTERM:
            processes.kill(self._child)  # that revokes the worker


def _redirect(out: int, error: int) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (out, 1), (error, 2)):
        os.dup2(source, target)
        if source > 2:
            os.close(source)


if __name__ == "__main__":
    # Last from here on: what lies beside spotmpi must not shadow anything of the script's.
    sys.path.append(sys.path.pop(0))
    main(Path(sys.argv[1]))
