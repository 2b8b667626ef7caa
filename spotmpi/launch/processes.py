"""Process trees: who descends from whom, and how to end all of them.

Linux only: a process that asks to be a *subreaper* becomes the parent of every descendant whose
own parent has died, so that nothing can escape by forking twice.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress

__all__ = [
    "adopt_orphans",
    "allow_descriptors",
    "below",
    "children",
    "cores",
    "descendants",
    "die_with_parent",
    "end_descendants",
    "few_descriptors",
    "kill",
    "kill_descendants",
    "lower_priority",
    "name_this",
    "next_signal",
    "parents",
    "raise_priority",
    "read",
    "signals",
    "sweep",
    "was_revoked",
]

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True)
_REVOCATIONS = (signal.SIGKILL, signal.SIGTERM)
_PRIORITY = -10
_DESCRIPTORS, _MORE_DESCRIPTORS = 9, 256
"""What mpirun, a launcher or an agent may need for each worker, whichever needs most; and more."""
_LEAST_DESCRIPTORS, _LEAST_MORE = 7, 96
"""What they need at least. Measured: 6 for each and 12 more, but 85 for two. The rest is for what
the script opens."""
_usual_priority = os.getpriority(os.PRIO_PROCESS, 0)


def allow_descriptors(workers: int, others: Iterable[int] = ()) -> None:
    """Let this process, those that it starts, and these ``others`` (of the same user, which may
    have ended) open as many files as so many workers need."""
    wanted = _DESCRIPTORS * workers + _MORE_DESCRIPTORS
    for pid in (os.getpid(), *others):
        with suppress(ProcessLookupError, PermissionError):
            soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            if soft != resource.RLIM_INFINITY and soft < wanted:
                limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, hard))


def few_descriptors(workers: int) -> str:
    """Return why so many workers cannot start here, if that is the limit of open files: it cannot
    be raised by `allow_descriptors`. Else nothing."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = _LEAST_DESCRIPTORS * workers + _LEAST_MORE
    if most == resource.RLIM_INFINITY or most >= need:
        return ""
    enough = (most - _LEAST_MORE) // _LEAST_DESCRIPTORS
    fewer = f", or start {enough} at most" if enough > 0 else ""
    return (
        f"a process may have no more than {most} files open here (ulimit -Hn), and {workers} "
        f"worker{'s' * (workers != 1)} may need {need}: raise that limit (nofile in "
        f"/etc/security/limits.conf; LimitNOFILE={need} of a service; for a container --ulimit "
        f"nofile={need}){fewer}"
    )


def adopt_orphans() -> None:
    """From now on, be the parent of descendants whose parent dies."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def name_this(name: str) -> None:
    """Have `ps` and `top` call this process so, by 15 bytes at most; without a space, as there are
    programs that read /proc/PID/stat word by word (Slurm is one). For the main thread."""
    _LIBC.prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()), 0, 0, 0)


def was_revoked(status: int) -> bool:
    """Whether a process ended as one does whose host is taken away; ``status`` as of waitpid()."""
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) in _REVOCATIONS


def die_with_parent(parent: int, by: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send ``by`` to this process when the thread that forked it ends.

    ``parent`` is the parent's process id as it knew itself before it forked: the parent may have
    died before this call, and then nothing would be sent, so this process ends at once.
    """
    _prctl(_PR_SET_PDEATHSIG, by)
    if os.getppid() != parent:
        os._exit(1)


def children(of: int) -> list[int]:
    """Return the direct children of a process, zombies included."""
    return [pid for pid, parent in parents() if parent == of]


def descendants(of: int) -> list[int]:
    """Return all descendants of a process, zombies included."""
    return below(of, parents())


def below(of: int, parents: Iterable[tuple[int, int]]) -> list[int]:
    """Return all descendants of a process, among those that `parents` has listed."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents:
        children.setdefault(parent, []).append(pid)
    found = list(children.get(of, ()))
    for pid in found:  # grows while it is walked
        found.extend(children.get(pid, ()))
    return found


def end_descendants(patience: float, keep: Collection[int] = ()) -> bool:
    """Kill everything below this process, reap it, and return whether nothing is left.

    Blocks for ``patience`` seconds at most: a process in an uninterruptible sleep dies later. The
    children named in ``keep``, and what descends from those, are left alone. For the main thread
    of a process that started its other children in ways that nobody else waits for.
    """
    deadline = time.monotonic() + patience
    pause = 0.0005
    while True:
        # Again and again: one may fork between being listed and being killed.
        mine = [pid for pid in _strays(keep) if not _reap(pid)]
        if not mine:
            return True
        for child in mine:
            for pid in [child, *descendants(child)]:
                kill(pid)
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
        pause = min(2 * pause, 0.02)


def kill_descendants() -> None:
    """Kill what is below this process now, without waiting for anything to be gone."""
    if _strays(()):
        for pid in descendants(os.getpid()):
            kill(pid)


def kill(pid: int) -> None:
    """SIGKILL a process that may be gone already."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def lower_priority(child: int) -> None:
    """Undo `raise_priority` in a child that has just been started.

    By its parent, and not by itself before it becomes a program: the parent waits for that, and
    would wait for long where processes of usual priority fill the cores.
    """
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, child, _usual_priority)


def raise_priority() -> None:
    """Have this process run before those that compute, where that is allowed."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _PRIORITY)


def signals(handled: Collection[signal.Signals]) -> int:
    """Return a descriptor that delivers these signals, which must be blocked, with senders."""
    mask = ctypes.create_string_buffer(128)
    _LIBC.sigemptyset(mask)
    for number in handled:
        _LIBC.sigaddset(mask, int(number))
    return int(_LIBC.signalfd(-1, mask, os.O_CLOEXEC))


def next_signal(signals: int) -> tuple[int, int]:
    """Return (signal, process id of the sender): struct signalfd_siginfo."""
    number, _, _, sender = struct.unpack_from("=IiiI", os.read(signals, 128))
    return number, sender


def sweep(mark: str, patience: float) -> bool:
    """Kill every process whose environment carries ``mark`` (``NAME=value``), except this one.

    Blocks for ``patience`` seconds at most; returns whether none was left.
    """
    deadline = time.monotonic() + patience
    while True:
        marked = [pid for pid in _marked(mark.encode()) if pid != os.getpid()]
        if not marked:
            return True
        for pid in marked:
            kill(pid)
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)


def _prctl(option: int, value: int) -> None:
    if _LIBC.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl({option}): {os.strerror(error)}")


def _strays(keep: Collection[int]) -> list[int]:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return []  # no child at all, and so no descendant: the usual case, for one system call
    return [pid for pid in children(os.getpid()) if pid not in keep]


def _reap(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def parents() -> Iterator[tuple[int, int]]:
    """Yield (process, its parent) for every process of the host."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    stat = file.read()
            except OSError:
                continue  # it has ended meanwhile
            # The command's name stands in parentheses and may hold anything, also parentheses.
            yield int(name), int(stat.rpartition(b")")[2].split()[1])


def _marked(mark: bytes) -> Iterator[int]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    environ = file.read()
            except OSError:
                continue  # it has ended meanwhile, or is somebody else's
            if mark in environ.split(b"\0"):
                yield int(name)


def read(descriptor: int) -> bytes | None:
    """Read what is there: empty at the end of the stream, None when nothing is there yet."""
    try:
        return os.read(descriptor, 1 << 16)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))
