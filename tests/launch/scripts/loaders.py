"""Workers with children of every kind, that then wait, die or end: ``loaders.py DEED``.

Each worker prints the process ids of its children: one forked, one started by exec, one that
forked twice into a session of its own, and one that did so and left the worker's environment.
"""

import os
import signal
import subprocess
import sys

from spotmpi.launcher_channel import LauncherChannel
from spotmpi.settings import Settings

settings = Settings.from_environ()
channel = LauncherChannel.open(settings)
SLEEPER = [sys.executable, "-c", "import signal; print('up', flush=True); signal.pause()"]


def forked():
    pid = os.fork()
    if pid == 0:
        signal.pause()
        os._exit(0)
    return pid


def executed():
    child = subprocess.Popen(SLEEPER, stdout=subprocess.PIPE)
    child.stdout.readline()
    return child.pid


def daemon(environ=None):
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(writing, str(os.getpid()).encode())
            if environ is None:
                signal.pause()
            os.execve(SLEEPER[0], SLEEPER, environ)
        os._exit(0)
    os.wait()
    return int(os.read(reading, 20))


pids = [forked(), executed(), daemon(), daemon({})]
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
channel.tell("begin")
channel.tell("ready")
told = ["children", settings.rank, os.getpid(), os.getppid(), *pids]
# In one piece: the children write to the same pipe.
os.write(1, (" ".join(map(str, told)) + "\n").encode())
match sys.argv[1]:
    case "wait":
        signal.pause()
    case "die" if settings.rank == 1:
        # Not before all are ready: only then is it a revocation.
        signal.sigwait({signal.SIGUSR1})
        os.kill(os.getpid(), signal.SIGKILL)
    case "die":
        signal.sigwait({signal.SIGUSR1})
channel.tell("done")
