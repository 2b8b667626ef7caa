"""`spotmpi.launch.silences`, under a clock that the tests drive."""

from __future__ import annotations

from spotmpi.launch.silences import WINDOW, Silences


def judge(silences: Silences, *seen: tuple[float, float]) -> None:
    """Look at each (moment, in windows; silence, in seconds) as the head does."""
    for moment, silence in seen:
        if silences.news(silence, moment * WINDOW):
            silences.saw(silence)


def test_the_longest_silence_stays_and_that_of_the_last_window_passes() -> None:
    silences = Silences()
    judge(silences, (7.0, 0.025), (7.5, 0.120), (7.9, 0.030))
    assert (silences.longest, silences.recent) == (0.120, None)
    judge(silences, (8.0, 0.010), (8.9, 0.040))
    assert (silences.longest, silences.recent) == (0.120, 0.120)
    judge(silences, (9.0, 0.001))
    assert (silences.longest, silences.recent) == (0.120, 0.040)


def test_only_the_longest_of_its_window_is_news() -> None:
    silences = Silences()
    assert silences.news(0.02, 7 * WINDOW)
    silences.saw(0.02)
    assert not silences.news(0.02, 7.5 * WINDOW)
    assert silences.news(0.03, 7.5 * WINDOW)
    assert silences.news(0.01, 8 * WINDOW)


def test_what_was_news_and_no_silence_leaves_no_trace() -> None:
    silences = Silences()
    judge(silences, (7.0, 0.02))
    assert silences.news(0.5, 7.5 * WINDOW)
    judge(silences, (8.0, 0.01))
    assert (silences.longest, silences.recent) == (0.02, 0.02)


def test_of_a_window_in_which_the_head_slept_nothing_is_known() -> None:
    silences = Silences()
    judge(silences, (7.0, 0.02), (8.0, 0.02), (10.0, 0.03))
    assert silences.recent is None
