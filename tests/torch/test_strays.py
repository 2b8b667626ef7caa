"""Newcomers of torch scripts that make other calls than the others: they leave, and the rest go
on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="no torch: python -m pip install torch")

from spotmpi.errors import Left, LeftAlone, Strayed  # noqa: E402
from spotmpi.fabric.sim.faults import Arrival, Kill  # noqa: E402
from spotmpi.torch.newcomers import Entrance  # noqa: E402
from tests import simulated  # noqa: E402
from tests.simulated import Final, Result  # noqa: E402
from tests.torch.dealt_job import PASSES, Passes  # noqa: E402
from tests.torch.test_newcomers import agree  # noqa: E402

STRAYED: list[str] = []
"""What workers said that have left."""


@dataclass(frozen=True)
class Strays(Passes):
    """A script of which one worker does something else: a newcomer in its first pass, any other one
    in the second pass, ``after`` so many batches."""

    how: str = "exchange"
    """``exchange``: it makes another call; ``other``: sums other numbers; ``skips``: leaves out all
    sums that are left; ``ends``: comes to its end; ``asks``: asks for something else after the
    pass; ``before``: makes another call before the next pass."""
    after: int = 1
    who: int = 3
    later: bool = False
    """A newcomer does it in a later pass."""

    def script(self, worker: int) -> Final:
        """Note why it ends."""
        try:
            return super().script(worker)
        except Strayed as why:
            STRAYED.append(str(why))
            raise

    def goes_on_with(self, number: int, batches: int, entrance: Entrance) -> bool:
        """Do what it is to do."""
        calls = entrance.calls
        due = number == 1 if self.who < self.workers else self._is_due(entrance)
        now = batches < 0 if self.how == "before" else batches >= self.after
        if calls.group.worker != self.who or not now or not due:
            return True
        match self.how:
            case "exchange" | "before":
                calls.exchange(number, "something else")
            case "other":
                calls.reduce([torch.ones(5)], "SUM")
            case "ends":
                calls.group.__exit__(None, None, None)
                raise Left("the script is over")
        return self.how != "skips"

    def _is_due(self, entrance: Entrance) -> bool:
        group = entrance.calls.group
        return group.worker == self.who and group._training.position.recent != self.later

    def asks(self, entrance: Entrance) -> str:
        """Ask for something else, if that is due."""
        return "else" if self.how == "asks" and self._is_due(entrance) else "passes"


@pytest.mark.parametrize("how", ["exchange", "other", "skips", "ends", "asks", "before"])
@pytest.mark.parametrize(
    "seeds", [range(6), pytest.param(range(6, 60), marks=pytest.mark.matrix)], ids=str
)
@pytest.mark.first("range(0, 6)-asks", "range(0, 6)-ends")
def test_a_newcomer_that_makes_other_calls_leaves_and_the_others_go_on(
    tmp_path: Path, seeds: range, how: str
) -> None:
    """Another one may learn meanwhile, or die."""
    STRAYED.clear()
    results = simulated.campaign(
        Strays(tmp_path / "calm", 3, how=how),
        seeds,
        lambda events, seed: {
            "after": seed % 3,
            "kills": [Kill(seed % 5, 1 + 97 * seed % events)][: seed % 2],
            "arrivals": [Arrival(3, 50 + 11 * seed), Arrival(4, 50 + 29 * seed % events)],
        },
        agree,
    )
    assert len(STRAYED) >= len(seeds) / 2, STRAYED
    assert all(one.startswith("worker 3 leaves: its script asks for") for one in STRAYED)
    for result in results:
        if (stayed := result.finals.get(3)) is not None:
            # It had no time to go astray.
            assert stayed.means[1] or (how, stayed.began) == ("before", PASSES - 1)
        killed = {one.worker for one in result.job.kills}
        assert killed | result.finals.keys() >= {0, 1, 2}


@pytest.mark.parametrize("elastic", [True, False])
@pytest.mark.parametrize(
    "seeds", [range(4), pytest.param(range(4, 40), marks=pytest.mark.matrix)], ids=str
)
def test_once_one_has_strayed_the_next_ones_come_in_the_rhythm_of_the_script(
    tmp_path: Path, seeds: range, elastic: bool
) -> None:
    """In one long pass: with each fifth batch the script makes another call."""
    STRAYED.clear()
    strays = list[int]()

    def holds(result: Result) -> None:
        assert len({final.bits for final in result.finals.values()}) == 1
        strays.append(len(STRAYED))
        STRAYED.clear()

    results = simulated.campaign(
        Strays(tmp_path / "calm", 3, how="", over=1, many=360, every=5, elastic=elastic),
        seeds,
        lambda events, seed: {
            "kills": [Kill(seed % 3, 1 + 97 * seed % events)][: seed % 2],
            "arrivals": [Arrival(3 + n, 50 + 550 * n + 11 * seed) for n in range(3)],
        },
        holds,
    )
    assert max(strays) == 1
    assert sum(strays) > len(seeds) / 2
    came = [one for result in results for one in result.finals.items() if one[0] > 2]
    assert len(came) > len(seeds)
    assert all(final.means[1] for _, final in came)


def test_all_that_make_other_calls_are_told_so(tmp_path: Path) -> None:
    """Nobody has joined lately."""
    with pytest.raises(LeftAlone, match="have come to different calls"):
        Strays(tmp_path, 3, how="skips", who=1).run()


def test_a_newcomer_that_came_long_ago_ends_the_training_as_any_other_worker(
    tmp_path: Path,
) -> None:
    with pytest.raises(LeftAlone, match="have come to different calls"):
        Strays(tmp_path, 3, later=True, arrivals=[Arrival(3, 80)]).run()


@pytest.mark.parametrize("every", [33, pytest.param(5, marks=pytest.mark.matrix)])
def test_another_one_may_learn_at_any_event_of_it(tmp_path: Path, every: int) -> None:
    job = Strays(tmp_path, 3, how="before", arrivals=[Arrival(3, 80)])
    for event in range(80, job.run().events * 2 // 3, every):
        come = replace(
            job, folder=tmp_path / f"{event}", arrivals=[*job.arrivals, Arrival(4, event)]
        )
        come.folder.mkdir()
        result = come.run()
        agree(result)
        assert {*result.finals} >= {0, 1, 2}
        assert 3 not in result.finals
