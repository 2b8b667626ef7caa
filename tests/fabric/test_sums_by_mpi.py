"""Sums by MPI itself: of what size its messages are between hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotmpi.fabric.neighbours.neighbours import Neighbours, on_several_hosts
from spotmpi.fabric.planes.travels import MESSAGE
from tests.fabric.test_mpi import over_mpi

SUMS = """
from types import SimpleNamespace
import numpy as np
from spotmpi.fabric.mpi.calls import MPI, Path
from spotmpi.fabric.mpi.data import DataPath
from spotmpi.fabric.planes.plane import Part
from spotmpi.fabric.planes.travels import MESSAGE

class Comm(MPI.Intracomm):
    def Allreduce(self, here, what):
        sizes.append((what[0] if isinstance(what, list) else what).nbytes)
        super().Allreduce(here, what)

sizes = []
world = Comm(MPI.COMM_WORLD)
me, many = world.Get_rank(), world.Get_size()
data = DataPath(me, lambda ways: SimpleNamespace(bind=lambda *given: None))

def total(dtype, size, several_hosts):
    array = (np.arange(size) % 50 + me).astype(dtype)
    data.enter(Path(world, range(many)), False, several_hosts)
    sizes.clear()
    data._sum([Part(array, array)])
    wanted = many * (np.arange(size) % 50) + many * (many - 1) // 2
    assert (array == wanted.astype(dtype)).all(), (dtype, size)
    return array.nbytes

for dtype in ("uint8", "uint32", "float32", "float64"):
    for size in (1, 1000, MESSAGE, 3 * MESSAGE + 5):
        whole = total(dtype, size, True)
        assert max(sizes) <= MESSAGE, (dtype, size, sizes)
        assert sum(sizes) >= whole
assert total("uint8", 3 * MESSAGE, False) == sizes[0]
assert len(sizes) == 1

def order(dtype, size):
    "What members bring whose sum depends on the order, and the sum in theirs."
    brought = [np.full(size, 1e7 if one else 0.3, dtype) * (-1) ** one for one in range(many)]
    wanted = brought[0]
    for one in brought[1:]:
        wanted = wanted + one
    return brought[me], wanted

for several_hosts in (False, True):
    data.enter(Path(world, range(many)), False, several_hosts)
    kinds = [("float32", 3), ("uint8", 5), ("float64", 1023), ("float32", 1024), ("uint32", 1)]
    given = [
        order(*kind) if kind[1] < 1024 and kind[0][0] == "f" else
        (np.full(kind[1], 1 + me, kind[0]), np.full(kind[1], many * (many + 1) // 2, kind[0]))
        for kind in kinds
    ]
    parts = [Part(mine, np.zeros_like(mine)) for mine, _ in given]
    sizes.clear()
    data._sum(parts)
    for part, (mine, wanted) in zip(parts, given):
        assert part.result.tobytes() == wanted.tobytes(), (many, part.result, wanted)
    assert len(sizes) == (2 if many > 2 or several_hosts else 5), sizes
print("SUMMED")
"""


def test_sums_are_right_and_no_message_between_hosts_is_larger_than_what_leaves_in_one_part(
    tmp_path: Path,
) -> None:
    """Small arrays are tables; see docs/adr/0033. They are summed in the order of the members, and
    those of one round at once."""
    for many in (2, 3):
        assert over_mpi(tmp_path, many, "-c", SUMS).count("SUMMED") == many


WORKERS = """
import os, sys
from spotmpi.fabric.neighbours import neighbours
if sys.argv[1] == "several":
    neighbours._host = lambda: int(os.environ["OMPI_COMM_WORLD_RANK"])
from spotmpi.bench.measuring.sums import summed
from spotmpi.fabric import Depart, Rebuild, Shape
from spotmpi.fabric.mpi import calls
from spotmpi.fabric.mpi.fabric import MpiFabric
from spotmpi.fabric.planes.travels import MESSAGE

fabric, collective, sizes = MpiFabric(), calls.collective, []

def watched(comm, call, here, what):
    sizes.append(what.nbytes)
    collective(comm, call, here, what)

calls.collective = watched
arena = fabric.arena([Shape("uint8", 3 * MESSAGE + 5)])
arena.contributions[0][...] = 1 + fabric.me
fabric.run(summed(arena.parts))
calls.collective = collective
assert (arena.results[0] == 3).all()
print("SIZES", *sizes, flush=True)
assert fabric.perform(Rebuild(frozenset(range(2)))).sealed
fabric.perform(Depart())
"""


@pytest.mark.parametrize(
    ("hosts", "sizes"), [("several", [*[MESSAGE] * 3, 5]), ("one", [3 * MESSAGE + 5])]
)
def test_members_know_if_their_messages_go_between_hosts(
    hosts: str, sizes: list[int], tmp_path: Path
) -> None:
    said = " ".join(map(str, ["SIZES", *sizes]))
    assert over_mpi(tmp_path, 2, "-c", WORKERS, hosts).count(said + "\n") == 2


def test_by_their_cards_all_know_if_they_on_several_hosts() -> None:
    one, other = (Neighbours(None, lines=False) for _ in range(2))
    assert not on_several_hosts([one.card(), other.card()])
    other.host += 1
    assert on_several_hosts([one.card(), other.card(), one.card()])
