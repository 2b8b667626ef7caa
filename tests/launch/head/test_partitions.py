"""Hosts that do not reach each other: who says so, when it counts, and who must go."""

from __future__ import annotations

from spotmpi.launch.head.partitions import Partitions
from spotmpi.launch.tcp_connections import TcpConnection

WORKERS = {"h1": 2, "h2": 2, "h3": 2}


def link(one: str, other: str) -> TcpConnection:
    return TcpConnection(f"{one}:1024", f"{other}:1025", False)


def seen(*pairs: tuple[str, str], at: tuple[float, ...] = (0.0, 1.0)) -> Partitions:
    """Pairs of which the first claims and the second confirms, at these times."""
    rifts = Partitions()
    for now in at:
        for one, other in pairs:
            rifts.claim(one, [link(one, other)], now)
            rifts.confirm(other, [link(one, other)], now)
    return rifts


def test_nobody_goes_while_all_reach_each_other() -> None:
    assert Partitions().outcast(WORKERS, 10.0) is None


def test_of_two_that_do_not_reach_each_other_the_later_goes() -> None:
    assert seen(("h1", "h2")).outcast(WORKERS, 1.0) == ("h2", ["h1"])
    assert seen(("h2", "h1")).outcast(WORKERS, 1.0) == ("h2", ["h1"])


def test_or_the_one_that_has_fewer_workers() -> None:
    assert seen(("h1", "h2")).outcast({"h1": 1, "h2": 2}, 1.0) == ("h1", ["h2"])


def test_who_misses_most_goes_however_many_workers_it_has() -> None:
    rifts = seen(("h1", "h2"), ("h3", "h1"))
    assert rifts.outcast({"h1": 8, "h2": 1, "h3": 1}, 1.0) == ("h1", ["h2", "h3"])


def test_it_must_last_for_a_second() -> None:
    rifts = seen(("h1", "h2"), at=(0.0, 0.9))
    assert rifts.outcast(WORKERS, 0.9) is None
    assert rifts.outcast(WORKERS, 1.0) == ("h2", ["h1"])


def test_what_nobody_says_again_is_over() -> None:
    rifts = seen(("h1", "h2"))
    assert rifts.outcast(WORKERS, 3.6) is None
    rifts.claim("h1", [link("h1", "h2")], 3.6)
    rifts.confirm("h2", [link("h1", "h2")], 3.6)
    assert rifts.outcast(WORKERS, 3.6) is None, "it began anew"
    assert rifts.outcast(WORKERS, 4.7) == ("h2", ["h1"])


def test_a_claim_that_nobody_confirms_is_none() -> None:
    # The other end may be that of a worker that is gone, or of no worker at all.
    rifts = Partitions()
    for now in (0.0, 1.0, 2.0):
        rifts.claim("h1", [link("h1", "h2")], now)
    assert rifts.outcast(WORKERS, 2.0) is None


def test_nor_is_what_was_never_claimed_or_long_ago_or_by_the_same_host() -> None:
    rifts = Partitions()
    rifts.claim("h1", [link("h1", "h2")], 0.0)
    rifts.claim("h2", [link("h2", "h2")], 2.6)
    for now in (2.6, 3.6):
        rifts.confirm("h2", [link("h1", "h2"), link("h3", "h2"), link("h2", "h2")], now)
    assert rifts.outcast(WORKERS, 3.6) is None


def claimed(rifts: Partitions, now: float, *pairs: tuple[str, str]) -> tuple[str, list[str]] | None:
    for one, other in pairs:
        rifts.claim(one, [link(one, other)], now)
        rifts.confirm(other, [link(one, other)], now)
    return rifts.outcast(WORKERS, now)


def test_after_an_outage_what_gets_no_answer_may_wait_for_as_long_again() -> None:
    rifts = seen(("h2", "h1"), ("h3", "h1"))
    rifts.excuse("h1", 6.0, now=1.0)
    for second in range(1, 9):
        assert claimed(rifts, second, ("h2", "h1"), ("h3", "h1")) is None, second
    assert claimed(rifts, 9.5, ("h2", "h1"), ("h3", "h1")) == ("h1", ["h2", "h3"])


def test_an_outage_of_others_and_a_silence_that_tcp_does_not_notice_excuse_nobody() -> None:
    rifts = seen(("h1", "h2"))
    assert not rifts.excuse("h1", 1.0, now=1.0)
    assert rifts.excuse("h3", 6.0, now=1.0)
    assert rifts.outcast(WORKERS, 1.0) == ("h2", ["h1"])


def test_a_shorter_outage_after_a_long_one_excuses_nobody_sooner() -> None:
    rifts = seen(("h2", "h1"))
    rifts.excuse("h1", 6.0, now=1.0)
    rifts.excuse("h1", 1.5, now=2.0)
    for second in range(1, 9):
        assert claimed(rifts, second, ("h2", "h1")) is None, second


def test_who_was_cut_off_is_no_witness_against_another_meanwhile() -> None:
    rifts = seen(("h2", "h1"), ("h2", "h3"))
    rifts.excuse("h1", 6.0, now=1.0)
    assert rifts.outcast(WORKERS, 1.0) == ("h3", ["h2"])


def test_a_host_that_is_silent_again_and_again_is_not_excused_for_ever() -> None:
    rifts = Partitions()
    found = None
    for second in range(121):
        rifts.excuse("h2", 1.5, now=second)
        assert found is None, second
        found = claimed(rifts, second, ("h2", "h1"))
    assert found == ("h2", ["h1"])


def test_a_host_that_has_gone_meanwhile_is_in_nobody_s_way() -> None:
    assert seen(("h1", "h2")).outcast({"h1": 2, "h3": 2}, 1.0) is None
