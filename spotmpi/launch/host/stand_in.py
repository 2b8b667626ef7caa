"""mpirun's child in place of a worker: it dies when that worker is revoked.

mpirun and ULFM see an ordinary local process; the worker itself is run by the `agent` of its host,
in the environment that mpirun gave to this process. The launcher kills it by SIGKILL when the
worker or its host is gone, and lets it go at the end of the job.

Run as a file by mpirun only: ``python stand_in.py FOLDER``, and for a newcomer that a worker has
spawned ``python stand_in.py FOLDER WORKER``.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
from typing import NoReturn

if __name__ == "__main__":
    # As in wrapper.py: the launcher's own spotmpi, whichever else is installed.
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(folder)))

from pathlib import Path

from spotmpi import job_folder
from spotmpi.launch import processes
from spotmpi.launch import wrapper_socket as wire
from spotmpi.launch.start import mpi_variables

_HANDLED = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


def main(folder: Path, newcomer: int | None = None) -> NoReturn:
    """Stand in for the newcomer, or else the worker that mpirun's environment names."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
    try:
        link = wire.connect(folder)
        job_folder.hold(folder)
    except OSError:
        os._exit(1)  # the launcher died, and mpirun with it
    me = int(os.environ["OMPI_COMM_WORLD_RANK"]) if newcomer is None else newcomer
    processes.name_this(f"stand-in-{me}")
    hello = wire.encode("hello", worker=me, environ=mpi_variables.of_mpi(os.environ))
    wire.say(link, hello)
    signals = processes.signals(_HANDLED)
    poll = select.poll()
    for descriptor in (signals, link.fileno()):
        poll.register(descriptor, select.POLLIN)
    while True:
        ready = {descriptor for descriptor, _ in poll.poll()}
        if signals in ready:
            number, sender = processes.next_signal(signals)
            if number == signal.SIGTERM and sender == os.getppid():
                wire.say(link, wire.encode("runtime"))
            elif number == signal.SIGTERM:
                os.kill(os.getpid(), signal.SIGKILL)  # anybody else's revokes the worker
        if link.fileno() in ready:
            _obey(link, folder)


def _obey(link: socket.socket, folder: Path) -> None:
    try:
        message = link.recv(64)
    except OSError:
        message = b""
    if message == wire.END:
        wire.say(link, wire.encode("cleared"))  # there is nothing of it on this host
    elif message == wire.LEAVE:
        os._exit(0)
    elif not message:
        job_folder.remove(folder)
        from spotmpi.settings import Settings  # here: all would pay for it at their start

        if job := Settings.from_environ().job:  # the keeper may have been killed as well
            job_folder.remove_when_free(job_folder.home() / job)
        os._exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
