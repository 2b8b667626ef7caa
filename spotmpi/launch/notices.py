"""Hears of notices for the host that it is on, in the event loop of a launcher or an agent.

What asks the cloud is a process of its own (`spotmpi.notice`): no answer, and no wait for one,
delays the loop. If it dies, that is said, and the job goes on without its notices.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from spotmpi import notice as package
from spotmpi.errors import UsageError
from spotmpi.launch import processes
from spotmpi.launch.event_loop import Loop
from spotmpi.launch.processes import read
from spotmpi.launch.wording import signal_name
from spotmpi.notice import Notice, clean, cloud
from spotmpi.settings import NOTICES, Watch

__all__ = ["NoticeListener", "add_arguments", "chosen"]

_PROGRAM = Path(package.__file__).with_name("__main__.py")
_CLOUDS = ("ec2", "gce", "azure")

_FOR_LAST_WORD = 3.0
"""Seconds for the cloud to be told that the host is safe, when all else is over."""

_LONGEST = 1 << 16
"""Bytes of a line that are waited for."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options that say what is a notice."""
    parser.add_argument(
        "--notice",
        metavar="SOURCE",
        help=f"what announces that a host is taken away: {', '.join(NOTICES)} (default: auto, "
        "the host's own cloud and signals)",
    )
    parser.add_argument(
        "--notice-endpoint",
        metavar="URL",
        help="ask this service instead of the cloud's own, for tests (see spotmpi.testing)",
    )


def chosen(options: argparse.Namespace) -> Watch:
    """What these options say; where they say nothing, the environment. Raises UsageError."""
    found = Watch.from_environ()
    watch = Watch(options.notice or found.source, options.notice_endpoint or found.endpoint)
    if options.notice_endpoint is not None and watch.source in ("signal", "none"):
        raise UsageError(
            f"--notice {watch.source} asks no service, so it has no use for --notice-endpoint "
            f"{options.notice_endpoint}; give --notice {', '.join(_CLOUDS[:-1])} or {_CLOUDS[-1]}"
        )
    return watch


class NoticeListener:
    """A launcher's or an agent's.

    ``noticed`` is called with each notice, ``say`` with what the user should know beside them.
    """

    def __init__(
        self,
        loop: Loop,
        watch: Watch,
        noticed: Callable[[Notice], None],
        say: Callable[[str], None],
        *,
        agent: bool = False,
        dmi: Path = cloud.DMI,
    ) -> None:
        self._loop = loop
        self._watch = watch
        self._noticed = noticed
        self._say = say
        self._dmi = dmi
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: dict[int, bytes] = {}
        """What has come of the next line of each of its streams."""
        self._signalled: set[int] = set()
        self._safe = False
        self.signals: tuple[signal.Signals, ...] = ()
        """Those that are notices: hand them to `take`."""
        if watch.source in ("auto", "signal"):
            # To a launcher SIGTERM says that it is to end, unless its user says otherwise; to an
            # agent Slurm and Kubernetes say with it that the host is taken away.
            asked = agent or watch.source == "signal"
            self.signals = (signal.SIGUSR1, signal.SIGTERM) if asked else (signal.SIGUSR1,)

    @property
    def pid(self) -> int | None:
        """The process that asks the cloud, if there is one."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Begin to ask the host's cloud, if it is in one."""
        source = self._watch.source
        provider = cloud.recognise(self._dmi) if source == "auto" else source
        if provider not in _CLOUDS:
            return
        command = [sys.executable, str(_PROGRAM), "--provider", provider]
        if self._watch.endpoint is not None:
            command += ["--endpoint", self._watch.endpoint]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for the launcher alone
            )
        except OSError as error:
            self._say(f"notices cannot be heard: {command[0]} cannot be run ({error.strerror})")
            return
        processes.lower_priority(self._process.pid)
        streams = self._process.stdin, self._process.stdout, self._process.stderr
        for stream, take in zip(streams, (None, self._hear, self._say), strict=True):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            if take is not None:
                self._follow(stream.fileno(), take)

    def take(self, number: int) -> bool:
        """Take a signal. Returns whether it is a notice; a second SIGTERM is none, and meant."""
        if number not in self.signals or (number == signal.SIGTERM and number in self._signalled):
            return False
        if not self._signalled:
            self._noticed(Notice("signal", None, signal_name(number)))
        self._signalled.add(number)
        return True

    def safe(self) -> None:
        """Nothing of the job is left on this host: the cloud need not wait any longer."""
        if self._process is not None and not self._safe:
            self._safe = True
            assert self._process.stdin is not None
            with suppress(OSError):  # it has died, which is said elsewhere
                os.write(self._process.stdin.fileno(), b"safe\n")

    def close(self) -> None:
        """Hear nothing any more. Blocks for seconds if the cloud is to be told something yet."""
        if self._process is None:
            return
        process, self._process = self._process, None
        for descriptor in self._lines:
            self._loop.leave(descriptor)
        self._lines.clear()
        assert process.stdin is not None
        process.stdin.close()
        if self._safe:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_FOR_LAST_WORD)
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            stream.close()

    def _follow(self, descriptor: int, take: Callable[[str], None]) -> None:
        def ready() -> None:
            data = read(descriptor)
            if data is None:
                return
            *lines, rest = (self._lines[descriptor] + data).split(b"\n")
            self._lines[descriptor] = rest[-_LONGEST:]
            for line in lines:
                take(line.decode(errors="replace"))
            if not data:
                self._ended()

        self._lines[descriptor] = b""
        self._loop.watch(descriptor, ready)

    def _hear(self, line: str) -> None:
        try:
            notice = Notice.decode(line)
        except ValueError:
            self._say(f"the notice watcher said {clean(line)!r}, which is no notice")
            return
        self._noticed(notice)

    def _ended(self) -> None:
        """It does not end by itself: it was killed, or there is a mistake in it."""
        process = self._process
        assert process is not None
        self._safe = False
        self.close()
        code = process.returncode
        how = signal_name(-code) if code < 0 else f"code {code}"
        self._say(
            f"the notice watcher ended ({how}); this host no longer hears the cloud's notices"
        )
