"""How workers of a test's script over MPI wait for each other outside of MPI, and end together.

No collective of MPI promises that nobody is still in it when the first has left. If that one ends,
the others learn of a failed process.
"""

import os
from pathlib import Path
from typing import Any

__all__ = ["await_all", "end"]


def await_all(folder: Path, me: int, many: int, where: str) -> None:
    """Return once so many workers, each with another number, have come to this place. Files tell
    it. Blocking; it calls no MPI."""
    (folder / f"{me}.{where}").touch()
    while len(list(folder.glob(f"*.{where}"))) < many:
        os.sched_yield()


def end(comm: Any) -> None:
    """End this worker with code 0 once all of ``comm`` are here. Collective, blocking."""
    comm.Barrier()  # all that is under way arrives
    await_all(Path(os.environ["SPOTMPI_JOB_DIR"]), comm.Get_rank(), comm.Get_size(), "ended")
    os._exit(0)
