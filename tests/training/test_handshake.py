"""Workers that came with different models or settings find out before anything is reduced."""

from __future__ import annotations

from collections.abc import Sequence

from spotmpi.errors import SpotmpiError, UsageError
from spotmpi.fabric import Arena, Shape, Steps
from spotmpi.fabric.sim import Kill, Simulation
from spotmpi.fabric.solo import SoloFabric
from spotmpi.protocol.membership import Membership
from spotmpi.training.handshake import shake_hands


def meet(facts: list[list[tuple[str, str]]], *kills: Kill) -> dict[int, str | None]:
    """What the handshake says to each worker; None if all is well."""
    membership = Membership.first(["h"] * len(facts))
    simulation = Simulation(membership, 1, kills)

    def worker(me: int) -> Steps[str | None]:
        try:
            yield from shake_hands(me, membership, facts[me], simulation.arena)
        except UsageError as error:
            return f"usage: {error}"
        except SpotmpiError as error:
            return str(error)
        return None

    for me in membership.ids:
        simulation.start(me, worker(me))
    simulation.run()
    return simulation.returned


def test_equal_workers_go_on() -> None:
    assert meet([[("the seed", "1"), ("the model", "x")]] * 3) == {0: None, 1: None, 2: None}


def test_all_hear_who_differs_and_in_what() -> None:
    same = [("the model", "x"), ("the seed", "1")]
    said = meet([same, same, [("the model", "x"), ("the seed", "2")], same])
    for me, text in said.items():
        assert text is not None
        assert text.startswith("usage: worker 2 and worker 0 differ in the seed")
        assert f"worker {me} has {2 if me == 2 else 1})" in text


def test_what_equal_workers_exchange_does_not_grow_with_their_number() -> None:
    sizes: list[int] = []

    def arena(layout: Sequence[Shape]) -> Arena:
        sizes.extend(shape.size for shape in layout)
        return SoloFabric().arena(layout)

    for workers in (2, 1000):
        membership = Membership.first(["h"] * workers)
        next(shake_hands(1, membership, [("the seed", "1"), ("the model", "x")], arena))
    assert sizes[0] == sizes[1]


def test_a_loss_before_the_first_step_ends_the_job_cleanly() -> None:
    said = meet([[("the seed", "1")]] * 3, Kill(1, 2))
    assert set(said) == {0, 2}
    for text in said.values():
        assert text is not None
        assert "another worker was lost before the first step" in text


def test_a_worker_alone_agrees_with_itself() -> None:
    fabric = SoloFabric()
    fabric.run(shake_hands(0, fabric.membership, [("the seed", "1")], fabric.arena))
