"""Where MPI's shared memory lies under plain mpirun: in files that soon have no name.

Open MPI maps a file of some MiB of each process (``sm_segment.*``) into all others on the host. It
lies in /dev/shm unless MPI is told otherwise, and mpirun removes it when the job is over. If mpirun
is killed with all it has started, as batch systems do, these files stay. `spotmpi run` has them in
its job's folder. Under plain mpirun each process has its own in such a folder, only until all have
mapped it: after that nothing is left, even after a kill. The next job of this user removes the
folder of a process that was killed before.

Open MPI's session folder goes the same way: if mpirun's server does not say where to make it, Open
MPI makes one in TMPDIR, for good.
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
    """Leave MPI's files without a name. MPI must start in this block, on all workers by its end.

    If the environment already says where these files lie, only TMPDIR is set, to that place.
    """
    if (place := os.environ.get(_PLACE)) is not None:
        with _temporary_files_in(place):
            yield
        return
    if "mpi4py.MPI" in sys.modules:  # the script has started MPI before
        yield
        for path in _SEGMENT.findall(Path("/proc/self/maps").read_text()):
            with suppress(FileNotFoundError):  # another process was faster
                os.unlink(path)
        return
    job_folder.remove_abandoned()
    _, folder, lock = job_folder.create(0)
    os.environ[_PLACE] = str(folder)
    try:
        with _temporary_files_in(str(folder)):
            yield
    finally:
        del os.environ[_PLACE]  # processes that this one starts are not of the job
        job_folder.remove(folder)
        os.close(lock)


@contextmanager
def _temporary_files_in(folder: str) -> Iterator[None]:
    """Set TMPDIR to this folder inside the block. Afterwards it is the script's again; so is the
    folder that Python keeps."""
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
