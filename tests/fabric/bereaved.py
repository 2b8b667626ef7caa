"""Run by mpirun for test_deaths: workers that wait for one that never comes, and is not dead.

usage: bereaved.py FOLDER

Worker 2 stops, and MPI takes it for alive. The others sum without it until there is a file ``go``
in the folder, know it only from then on, and sum with it. Who is told of its death shrinks.
"""

import os
import signal
import sys
from array import array
from pathlib import Path

import mpi4py

mpi4py.rc.finalize = False

from mpi4py import MPI  # noqa: E402

from spotmpi.fabric.deaths import Deaths, Listener  # noqa: E402
from spotmpi.launcher_channel import Obituaries  # noqa: E402
from tests.fabric.ending import end  # noqa: E402

folder, world = Path(sys.argv[1]), MPI.COMM_WORLD
world.Set_errhandler(MPI.ERRORS_RETURN)
me = world.Get_rank()
deaths = Listener(Obituaries(folder, me), Deaths().announce)
print("NAME", me, os.environ["PMIX_NAMESPACE"], os.environ["PMIX_RANK"], os.getpid(), flush=True)
here = world.Split(0 if me < 2 else 1)
world.Barrier()
if me == 2:
    os.kill(os.getpid(), signal.SIGSTOP)
deaths.follow([0, 1])
try:
    while True:
        word = array("d", [(folder / "go").exists()])
        here.Allreduce(MPI.IN_PLACE, word)
        if word[0]:
            print("TURNS", me, flush=True)
            deaths.follow([2])
            world.Allreduce(MPI.IN_PLACE, array("d", [1.0]))
except MPI.Exception as error:
    if error.Get_error_class() not in (MPI.ERR_PROC_FAILED, MPI.ERR_REVOKED):
        raise
world.Revoke()
left = world.Shrink()
print("LEFT", me, left.Get_size(), flush=True)
end(left)
