"""Each survivor tells of a recovery, and it is said once."""

from __future__ import annotations

from spotmpi.launch.messages import Recovery
from spotmpi.launch.showing.recoveries import Recoveries


def recovery(generation: int, total_ms: float | None, workers: int = 2) -> Recovery:
    return Recovery(generation, (1,), 40, workers, "retry", total_ms)


def test_what_all_have_told_of_is_said_as_the_last_one_saw_it() -> None:
    heard: list[Recovery] = []
    recoveries = Recoveries(heard.append)
    for worker, total_ms in ((0, 12.0), (2, 13.0), (3, None)):
        assert not heard
        recoveries.told(worker, recovery(1, total_ms, workers=3))
    assert heard == [recovery(1, 13.0, workers=3)]
    recoveries.told(4, recovery(1, 90.0, workers=3))
    recoveries.end()
    assert len(heard) == 1, "nobody makes it another one"


def test_who_does_not_tell_of_it_is_waited_for_until_the_second_look() -> None:
    heard: list[Recovery] = []
    recoveries = Recoveries(heard.append)
    recoveries.told(0, recovery(1, 12.0))
    recoveries.look()
    assert not heard, "others may tell of it in this second"
    recoveries.look()
    assert heard == [recovery(1, 12.0)]
    recoveries.look()
    recoveries.look()
    assert len(heard) == 1


def test_the_next_recovery_ends_the_waiting() -> None:
    heard: list[Recovery] = []
    recoveries = Recoveries(heard.append)
    for generation in (1, 2, 3):
        recoveries.told(0, recovery(generation, None))
    assert [one.generation for one in heard] == [1, 2]
