"""Where MPI's shared memory lies in a job that nobody launched: in files that soon have no name.

Of every process Open MPI maps a file of some MiB (``sm_segment.*``) into all others on the host, in
/dev/shm unless it is told otherwise, and mpirun removes them when the job is over. If mpirun is
killed with all it has started, as batch systems do, they stay. `spotmpi run` has them in its job's
folder. Under plain mpirun each process has its own in a folder of that kind, only until all have
mapped it: from then on nothing is left, whoever is killed. The next job of this user removes the
folder of a process that was killed before.

Open MPI's session folder goes the same way: it asks mpirun's server where to make it, and makes one
in TMPDIR, for good, where that does not answer.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from spotmpi import job_folder

__all__ = ["unnamed"]

_PLACE = "OMPI_MCA_btl_sm_backing_directory"
_TEMPORARY = "TMPDIR"
_SEGMENT = re.compile(r" (/\S*/sm_segment\.\S+)$", re.MULTILINE)


@contextmanager
def unnamed() -> Iterator[None]:
    """MPI is to start in this block, and everybody's must have when it ends.

    Nothing is done where it was said already where these files are to lie.
    """
    if (place := os.environ.get(_PLACE)) is not None:
        with _temporary_files_in(place):
            yield
        return
    if "mpi4py.MPI" in sys.modules:  # the script has started MPI before
        yield
        for path in _SEGMENT.findall(Path("/proc/self/maps").read_text()):
            with suppress(FileNotFoundError):  # it is another's, who was faster
                os.unlink(path)
        return
    job_folder.remove_abandoned()
    _, folder, lock = job_folder.create(0)
    os.environ[_PLACE] = str(folder)
    try:
        with _temporary_files_in(str(folder)):
            yield
    finally:
        del os.environ[_PLACE]  # what this process starts is none of the job's
        job_folder.remove(folder)
        os.close(lock)


@contextmanager
def _temporary_files_in(folder: str) -> Iterator[None]:
    """Inside, TMPDIR is this folder; afterwards it is the script's, which Python keeps, too."""
    before, kept = os.environ.get(_TEMPORARY), tempfile.tempdir
    os.environ[_TEMPORARY] = folder
    try:
        yield
    finally:
        tempfile.tempdir = kept
        if before is None:
            del os.environ[_TEMPORARY]
        else:
            os.environ[_TEMPORARY] = before
