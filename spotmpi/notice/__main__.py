"""``python -m spotmpi.notice --provider ec2``: watch for notices. For launchers and agents.

They start it by its file, so that nothing in the working directory is taken for a module.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__" and not __package__:
    # As in launch/host/wrapper.py: the launcher's own spotmpi, whichever else is installed; but
    # what lies beside it shadows nothing.
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    import spotmpi.errors  # noqa: F401 - from here on its modules are found through their package

    sys.path.append(sys.path.pop(0))

import argparse
from collections.abc import Sequence
from contextlib import suppress

from spotmpi.errors import UsageError
from spotmpi.notice import Notice
from spotmpi.notice.metadata import Service
from spotmpi.notice.provider import ENDPOINTS, make
from spotmpi.notice.watcher import Input, watch
from spotmpi.settings import Watch

_NICE = 10


def main(arguments: Sequence[str]) -> int:
    """Watch until the input ends; see `watcher`. Blocking."""
    parser = argparse.ArgumentParser(prog="python -m spotmpi.notice", description=__doc__)
    parser.add_argument("--provider", choices=sorted(ENDPOINTS), required=True)
    parser.add_argument("--endpoint", metavar="URL", help="who is asked in place of the provider")
    options = parser.parse_args(arguments)
    try:
        endpoint = options.endpoint or Watch.from_environ().endpoint
        Watch(options.provider, endpoint)
    except UsageError as error:
        parser.error(str(error))
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    said = Input(0)
    service = Service(endpoint or ENDPOINTS[options.provider], said.wait)
    watch(make(options.provider, service), said, _tell, _complain)
    return 0


def _tell(notice: Notice) -> None:
    _write(1, notice.encode())


def _complain(sentence: str) -> None:
    with suppress(OSError):
        _write(2, sentence)


def _write(descriptor: int, line: str) -> None:
    # Past Python's buffers: those would be written again, and fail again, at the process's end.
    os.write(descriptor, line.encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
