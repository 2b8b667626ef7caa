"""Run by mpirun for test_mpi: how much a worker grows by a generation, in KB.

usage: soak.py GENERATIONS

Nobody dies: the data path is revoked and made anew, which is what a loss does as well. But when all
have their sums: MPI (Open MPI 5.0) leaks what an interrupted all-reduce had waited for.
"""

import os
import sys
from pathlib import Path

import numpy as np

from spotmpi.bench.measuring.sums import summed
from spotmpi.fabric import Depart, Part, Rebuild, Revoke, retired
from spotmpi.fabric.mpi.calls import MPI
from spotmpi.fabric.mpi.fabric import MpiFabric

generations, first = int(sys.argv[1]), 20
retired.QUIET = 0.0  # as if each generation lasted for long


def size() -> int:
    """Resident memory of this process in KB."""
    status = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in status if line.startswith("VmRSS")))


fabric = MpiFabric()
members = frozenset(fabric.membership.ids)
before = 0
for number in range(generations):
    for _ in range(2):
        total = np.ones(100)
        fabric.run(summed([Part(total, total)]))
    MPI.COMM_WORLD.Barrier()
    fabric.perform(Revoke())
    assert fabric.perform(Rebuild(members)).sealed
    if number == first:
        before = size()
total = np.ones(100)
fabric.run(summed([Part(total, total)]))
assert total[0] == len(members)
assert fabric.perform(Rebuild(members)).sealed  # so that nobody ends while others still sum
fabric.perform(Depart())
print("GREW", round((size() - before) / (generations - 1 - first), 2), flush=True)
os._exit(0)
