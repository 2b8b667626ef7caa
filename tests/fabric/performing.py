"""Performs the scenarios of the contract over MPI, as a script under mpirun, and writes what was
seen into a folder: ``performing.py FOLDER PLANE SCENARIO...``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from spotmpi.fabric import Rebuild, Shape, Steps
from tests.fabric import (
    contract,
    mail_scenarios,
    model_scenarios,
    place_scenarios,
    signal_scenarios,
    small_scenarios,
    sum_scenarios,
)
from tests.fabric.contract import ALL, SCENARIOS, WORKERS, Die, Go, deadly

__all__ = [
    "mail_scenarios",
    "model_scenarios",
    "performed",
    "place_scenarios",
    "signal_scenarios",
    "small_scenarios",
    "sum_scenarios",
]


def performed(name: str, me: int, move_on: Callable[[], None] = lambda: None) -> Steps[Any]:
    """The scenario; then wait for all others alive, and leave a fabric like a new one."""
    seen = yield from SCENARIOS[name](me)
    yield Rebuild(None)
    move_on()
    if not deadly(name):
        yield Rebuild(ALL)
    return seen


def main() -> None:
    """Perform over MPI what the command line names."""
    from spotmpi.fabric.mpi import asks
    from spotmpi.fabric.mpi import fabric as mpi
    from tests.fabric.ending import await_all
    from tests.fabric.planes import PLANES

    folder, plane, *names = sys.argv[1:]
    mpi.PLANE = PLANES[plane]
    asks.PIECE = 8 << 10  # models here are small
    fabric = mpi.MpiFabric()
    contract.arena_of = partial(fabric.arena, name="of the scenario")
    fabric.arena([Shape("float32", 1 << 16)], "so large that planes do their best")
    await_all(Path(folder), fabric.me, WORKERS, "here")  # the first may be about to die
    seen = {}
    for name in names:
        try:
            seen[name] = fabric.run(performed(name, fabric.me, fabric.move_on))
        except Die:
            os.kill(os.getpid(), signal.SIGKILL)
        except Go:
            os._exit(0)
    Path(folder, f"{fabric.me}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
