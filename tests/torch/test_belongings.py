"""What a script trains with gets the numbers of another worker's, where it is."""

from __future__ import annotations

import gc
import sys
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="no torch: python -m pip install torch")

from spotmpi.errors import UsageError  # noqa: E402
from spotmpi.torch import belongings  # noqa: E402
from spotmpi.torch.belongings import Belongings  # noqa: E402
from spotmpi.torch.tensors import read_bytes, write_bytes  # noqa: E402
from spotmpi.torch_hooks import calls  # noqa: E402
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


def test_one_tensor_may_stand_in_two_places(made: Any) -> None:  # noqa: F811
    """On one worker, and not on another one."""
    theirs, given = made(3), Belongings()
    given.look()
    ours, taken = made(1), Belongings()
    for state in ours[1].state.values():
        state["exp_avg"] = state["exp_avg_sq"]
    taken.take(given.described, given.numbers)
    assert held(ours) == held(theirs)


class ModelCheckpoint:
    """As Lightning's."""

    def __init__(self, name: str, best: float, last: float) -> None:
        self.state_key = name
        self.best, self.paths = torch.tensor(best), {"kept/a": torch.tensor(last)}

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "paths": self.paths}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.paths = state["best"], state["paths"]


def test_the_best_models_so_far_are_what_a_script_trains_with(
    made: Any,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Though they are made before the group; in the order of their names."""
    made(1)[:] = []
    monkeypatch.setattr(calls, "MADE", belongings.MADE)
    there = SimpleNamespace(ModelCheckpoint=ModelCheckpoint)
    monkeypatch.setitem(sys.modules, "lightning.pytorch.callbacks.model_checkpoint", there)
    monkeypatch.setattr(ModelCheckpoint, "__init__", ModelCheckpoint.__init__)  # put back
    belongings.MADE[:] = []
    theirs = [ModelCheckpoint("b", 1.0, 2.0), ModelCheckpoint("a", 3.0, 4.0)]
    calls.note_what_is_made()
    theirs.append(ModelCheckpoint("0", 5.0, 6.0))
    calls.note_what_is_made()
    assert [one().state_key for one in belongings.MADE] == ["a", "b", "0"]
    given = Belongings()
    given.look()
    ours = [ModelCheckpoint(name, 0.0, 0.0) for name in "ab0"]
    for one in ours:
        one.paths["kept/a"] = one.best  # as it was the last one, too
        one.paths["kept/b"] = one.best
    best = ours[0].best
    belongings.MADE[:] = map(weakref.ref, ours)
    Belongings().take(given.described, given.numbers)
    for one, other in zip(ours, (theirs[1], theirs[0], theirs[2]), strict=True):
        assert one.state_dict() == other.state_dict()
    assert not best  # others may have it


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
