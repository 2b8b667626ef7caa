"""What a script trains with gets the numbers of another worker's, where it is."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="no torch: python -m pip install torch")

from spotmpi.errors import UsageError  # noqa: E402
from spotmpi.torch import belongings  # noqa: E402
from spotmpi.torch.belongings import Belongings  # noqa: E402
from spotmpi.torch.tensors import read_bytes, write_bytes  # noqa: E402
from tests.torch.test_newcomers import held, made  # noqa: E402, F401


@pytest.mark.parametrize("many", [1, 7, 64, 1000])
def test_bytes_of_tensors_come_in_pieces(many: int) -> None:
    """Also into tensors that are not contiguous, and past those that are empty."""

    def tensors(value: float) -> list[Any]:
        images = torch.arange(24.0).view(1, 2, 3, 4).contiguous(memory_format=torch.channels_last)
        whole = torch.arange(6, dtype=torch.int64)
        return [images * value, torch.zeros(0), whole * int(value), torch.tensor(value)]

    theirs, ours = tensors(3.0), tensors(0.0)
    size = sum(one.nbytes for one in theirs)
    for begin in range(0, size, many):
        piece = np.empty(min(many, size - begin), np.uint8)
        read_bytes(theirs, begin, piece)
        write_bytes(ours, begin, piece)
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one, other)
        assert one.stride() == other.stride()


def test_numbers_come_where_the_script_has_them(made: Any) -> None:  # noqa: F811
    """Memory that is new takes more time than to fill it."""
    theirs, given = made(3), Belongings()
    given.look()
    ours, taken = made(1), Belongings()
    module, optimizer = ours[:2]
    before = [one.data_ptr() for one in [*module.parameters(), *module.buffers()]]
    known = [optimizer.state[one]["exp_avg"].data_ptr() for one in module[0].parameters()]
    numbers = given.numbers
    taken.take(given.described, numbers)
    numbers[:] = 0
    assert held(ours) == held(theirs)
    assert before == [one.data_ptr() for one in [*module.parameters(), *module.buffers()]]
    assert known == [optimizer.state[one]["exp_avg"].data_ptr() for one in module[0].parameters()]


def test_what_the_script_does_not_have_yet_is_made(made: Any) -> None:  # noqa: F811
    theirs, given = made(3), Belongings()
    given.look()
    ours, taken = made(1), Belongings()
    ours[1].state.clear()
    taken.take(given.described, given.numbers)
    assert held(ours) == held(theirs)


@pytest.mark.parametrize("more", [-1, 1])
def test_as_many_numbers_come_as_were_described(made: Any, more: int) -> None:  # noqa: F811
    those, given = made(3), Belongings()
    given.look()
    assert given.kinds == [type(one).__name__ for one in those]
    with pytest.raises(UsageError, match="too few numbers" if more < 0 else "too many numbers"):
        given.expect(given.described, given.size + more)


@pytest.mark.parametrize(
    ("theirs", "twins", "collected"),
    [
        ([["Linear", "SGD"]], False, 0),
        ([["Linear", "SGD"], ["Linear", "SGD"]], False, 0),
        ([["Linear", "SGD"], ["Linear"]], False, 1),
        ([["SGD", "Linear"]], False, 1),
        ([], False, 1),
        # One of them may be there for nothing, and the other worker's twin another one.
        ([["Linear", "SGD", "SGD"]], True, 1),
    ],
)
def test_garbage_is_collected_if_there_is_a_doubt_what_is_used(
    made: Any,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    theirs: Any,
    twins: bool,
    collected: int,
) -> None:
    made(1)[:] = []
    belongings.MADE[:] = []
    module = torch.nn.Linear(1, 1)
    optimizers = [torch.optim.SGD(module.parameters(), 0.1) for _ in range(1 + twins)]
    belongings.MADE[:] = map(weakref.ref, [module, *optimizers])
    times: list[int] = []
    monkeypatch.setattr(gc, "collect", lambda: times.append(1))
    ours = Belongings()
    ours.look(theirs=theirs)
    assert len(times) == collected
    assert ours.size == 8
