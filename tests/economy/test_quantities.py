"""Numbers with units: what is read, what is refused, what is shown."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotmpi.economy.quantities import (
    HOUR,
    cluster,
    count_text,
    dollars,
    duration,
    percent,
    time_text,
)
from spotmpi.errors import UsageError

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("2h", 2 * HOUR),
        (" 1.5 min ", 90),
        ("1h30min", 5400),
        ("1h 30 m", 5400),
        ("1d", 86400),
        ("250ms", 0.25),
        (".5s", 0.5),
        ("2.s", 2),
        ("0s", 0),
    ],
)
def test_a_duration_is_read_with_its_unit(text: str, seconds: float) -> None:
    assert duration(text) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    "text",
    ["", " ", "90", "h", "-3h", "2 hours", "1h30", "5mins", "1e3s", "nan s", "9" * 400 + "s"],
)
def test_what_is_no_duration_is_refused_by_name(text: str) -> None:
    with pytest.raises(UsageError, match=r"the deadline is .*expected a number with its unit"):
        duration(text, "the deadline")


@given(st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from(sorted(UNITS))), min_size=1))
def test_parts_of_a_duration_add_up(parts: list[tuple[int, str]]) -> None:
    text = " ".join(f"{number}{unit}" for number, unit in parts)
    assert duration(text) == pytest.approx(sum(n * UNITS[unit] for n, unit in parts))


@given(st.text())
def test_any_text_is_a_duration_or_is_refused(text: str) -> None:
    try:
        seconds = duration(text)
    except UsageError:
        return
    assert math.isfinite(seconds)
    assert seconds >= 0


NAMES = st.text(st.characters(exclude_characters=" :,=", exclude_categories=["Z", "C"]), min_size=1)


@given(st.dictionaries(NAMES, st.integers(1, 10**9 - 1), min_size=1))
def test_a_cluster_that_is_written_is_read_back_in_its_order(counts: dict[str, int]) -> None:
    assert list(cluster(count_text(counts), "--cluster").items()) == list(counts.items())


@given(st.text())
def test_any_text_is_a_cluster_or_is_refused(text: str) -> None:
    try:
        found = cluster(text, "--cluster")
    except UsageError:
        return
    assert found
    assert min(found.values()) >= 1


def test_types_with_no_instance_are_not_in_a_cluster() -> None:
    assert cluster("K80:4, V100:0 ,P100:1", "it") == {"K80": 4, "P100": 1}
    assert count_text({}) == "nothing"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "expected types and numbers"),
        ("K80", "expected types and numbers"),
        ("K80:-1", "expected types and numbers"),
        ("K80:1.5", "expected types and numbers"),
        ("K80:1,", "expected types and numbers"),
        ("K80:1,K80:2", "names K80 twice"),
        ("K80:0", "no instance at all"),
    ],
)
def test_what_is_no_cluster_is_refused_by_name(text: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=f"--quota is '{text}', .*{complaint}"):
        cluster(text, "--quota")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.85, "850 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.0 s"),
        (42, "42.0 s"),
        (738, "12.3 min"),
        (9180, "2.55 h"),
        (3.6e9 - 3600, "999999.00 h"),
        (3.6e13, "1e+10 h"),
        (math.inf, "inf h"),
    ],
)
def test_times_are_shown_in_the_unit_that_fits(seconds: float, text: str) -> None:
    assert time_text(seconds) == text


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "$0.00"), (1.05, "$1.05"), (0.1, "$0.10"), (0.0423, "$0.0423"), (1234.5, "$1234.50")],
)
def test_small_amounts_have_four_decimals(amount: float, text: str) -> None:
    assert dollars(amount) == text


def test_absurd_figures_have_an_exponent_rather_than_a_line_of_digits() -> None:
    """A table in which one cell has 300 of them cannot be read."""
    assert dollars(3.98e300) == "$3.98e+300"
    assert dollars(2e-300) == "$2e-300"
    assert percent(4587699.03) == "4.59e+08 %"
