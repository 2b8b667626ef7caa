"""Lifetimes: samples against cdfs, cdfs against slow definitions, and what people write."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from spotmpi.economy.market.lifetimes import (
    Bathtub,
    Empirical,
    Exponential,
    Lifetime,
    Never,
    Weibull,
    from_field,
    measured,
    parse,
)
from spotmpi.economy.reading import load
from spotmpi.errors import UsageError

HOUR = 3600.0
DAY = 24 * HOUR

SMOOTH: dict[str, Lifetime] = {
    "exponential": Exponential(10 * HOUR),
    "weibull early": Weibull(10 * HOUR, 0.6),
    "weibull late": Weibull(10 * HOUR, 3.0),
    "bathtub": Bathtub(DAY, HOUR, 0.8 * HOUR, DAY),
    "bathtub late": Bathtub(DAY, 2 * HOUR, 1.5 * HOUR, 22 * HOUR),
    "bathtub flat": Bathtub(HOUR, DAY, DAY, HOUR),
    "measured": Empirical([(2 * HOUR, 0.2), (DAY, 0.3), (2 * DAY, 1.0)]),
}
GCE = Empirical([(2 * HOUR, 0.2), (DAY, 0.3), (DAY, 1.0)])
ALL = {**SMOOTH, "never": Never(), "jump": GCE, "rest": Empirical([(HOUR, 0.4), (DAY, 0.6)])}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lifetimes")


def distance(lives: np.ndarray, cdf: Callable[[np.ndarray], np.ndarray]) -> float:
    """Kolmogorov and Smirnov's: the largest gap between a sample's steps and a cdf."""
    lives = np.sort(lives)
    steps = np.arange(len(lives) + 1) / len(lives)
    at, below = cdf(lives), cdf(np.nextafter(lives, -np.inf))
    # At equal lifetimes only the outer steps count.
    upper = np.searchsorted(lives, lives, side="right")
    lower = np.searchsorted(lives, lives, side="left")
    return float(max(np.max(steps[upper] - at), np.max(below - steps[lower])))


def critical(size: int) -> float:
    """Exceeded by one sample in a thousand of this size; the seeds are fixed."""
    return 1.95 / math.sqrt(size)


@pytest.mark.parametrize("name", ALL)
def test_a_sample_is_distributed_as_its_cdf_says(name: str) -> None:
    lives = ALL[name].sample(np.random.default_rng(20_000), 20_000)
    forever = ~np.isfinite(lives)
    never = 1 - float(ALL[name].cdf(1e15))
    assert np.mean(forever) == pytest.approx(never, abs=3 * math.sqrt(0.25 / 20_000))
    assert (lives > 0).all()
    mortal = lives[~forever]
    if len(mortal):
        assert distance(mortal, lambda t: ALL[name].cdf(t) / (1 - never)) < critical(len(mortal))


def test_the_distance_finds_a_sample_that_is_another() -> None:
    lives = Exponential(10.6 * HOUR).sample(np.random.default_rng(1), 20_000)
    assert distance(lives, SMOOTH["exponential"].cdf) > critical(20_000)


def slow_inverse(cdf: Callable[[float], float], share: float, most: float) -> float:
    low, high = 0.0, most
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if cdf(middle) < share else (low, middle)
    return high


def definition(life: Lifetime) -> Callable[[float], float]:
    """The cdf, written as in its book, one age at a time."""
    if isinstance(life, Exponential):
        return lambda t: 1 - math.exp(-t / life.mean_s)
    if isinstance(life, Weibull):
        return lambda t: 1 - math.exp(-((t / life.scale_s) ** life.shape))
    assert isinstance(life, Bathtub)

    def g(t: float) -> float:
        return 1 - math.exp(-t / life.tau1_s) + math.exp((t - life.b_s) / life.tau2_s)

    def f(t: float) -> float:
        t = min(t, life.limit_s)
        return (g(t) - g(0)) / (g(life.limit_s) - g(0))

    return f


FORMULAS = [name for name in SMOOTH if name != "measured"]


@pytest.mark.parametrize("name", FORMULAS)
def test_a_cdf_is_the_one_of_its_book(name: str) -> None:
    life = SMOOTH[name]
    book = definition(life)
    ages = [0.0, 1.0, 60.0, HOUR / 2, HOUR, 5 * HOUR, 12 * HOUR, 23 * HOUR, DAY, 3 * DAY]
    assert life.cdf(ages) == pytest.approx([book(t) for t in ages], abs=1e-12)
    assert float(life.cdf(-5.0)) == 0
    assert float(life.cdf(math.inf)) == 1


class Given(np.random.Generator):
    """A generator that "draws" the numbers it is given."""

    def __init__(self, numbers: list[float]) -> None:
        super().__init__(np.random.PCG64(0))
        self._numbers = np.array(numbers)

    def random(self, size: int) -> np.ndarray:  # type: ignore[override]
        assert size == len(self._numbers)
        return self._numbers


@pytest.mark.parametrize("name", ["exponential", "weibull early", "weibull late"])
def test_a_sample_is_the_inverse_of_the_cdf(name: str) -> None:
    shares = [0.001, 0.1, 0.5, 0.63, 0.9, 0.999]
    lives = SMOOTH[name].sample(Given(shares), len(shares))
    book = definition(SMOOTH[name])
    expected = [slow_inverse(book, share, 1e9) for share in shares]
    assert lives == pytest.approx(expected, rel=1e-9)


@given(st.floats(HOUR, DAY), *[st.floats(0.05 * HOUR, DAY)] * 2, st.floats(HOUR, 2 * DAY))
def test_a_bathtub_rises_from_0_to_1_at_its_limit(
    limit: float, tau1: float, tau2: float, b: float
) -> None:
    life = Bathtub(limit, tau1, tau2, b)
    ages = np.linspace(0, limit, 50)
    shares = life.cdf(ages)
    assert (shares[0], shares[-1]) == (0, pytest.approx(1, abs=1e-12))
    assert (np.diff(shares) >= -1e-15).all()
    book = definition(life)
    assume((limit - b) / tau2 < 500)
    assert shares == pytest.approx([book(t) for t in ages.tolist()], abs=1e-9)
    lives = life.sample(np.random.default_rng(1), 100)
    assert (lives > 0).all()
    assert (lives <= limit).all()


TIMES = st.floats(1e-3, 1e12)


@given(TIMES, TIMES, TIMES, TIMES, st.floats(0.1, 100.0))
def test_no_legal_numbers_break_the_arithmetic(
    first: float, tau1: float, tau2: float, b: float, shape: float
) -> None:
    for life in (Exponential(first), Weibull(first, shape), Bathtub(first, tau1, tau2, b)):
        lives = life.sample(np.random.default_rng(1), 20)
        shares = life.cdf([0.0, *lives, 1e-3, 1e12, math.inf])
        assert not np.isnan(lives).any()
        assert (lives >= 0).all()
        assert ((shares >= 0) & (shares <= 1)).all()
        assert life.text


def test_equal_generators_give_equal_lifetimes_and_each_uses_one_number() -> None:
    for life in ALL.values():
        one, other, bare = (np.random.default_rng(7) for _ in range(3))
        assert (life.sample(one, 9) == life.sample(other, 9)).all()
        bare.random(9)
        assert one.random() == bare.random()


# Measured.


def slow_cdf(points: list[tuple[float, float]], age: float) -> float:
    """Straight lines between points, found by walking along them."""
    points = [(0.0, 0.0), *points]
    share = 0.0
    for (a, f), (b, g) in itertools.pairwise(points):
        if b <= age:
            share = g
        elif a <= age:
            return f + (g - f) * (age - a) / (b - a)
    return share


def ascending(raw: list[tuple[int, int]]) -> list[tuple[float, float]]:
    ages, shares = sorted(a for a, _ in raw), sorted(s for _, s in raw)
    return [(float(a), s / 10) for a, s in zip(ages, shares, strict=True)]


POINTS = st.lists(st.tuples(st.integers(1, 20), st.integers(0, 10)), min_size=1).map(ascending)


@given(POINTS, st.lists(st.floats(-1, 25), min_size=1))
def test_measured_shares_lie_on_straight_lines_between_points(
    points: list[tuple[float, float]], ages: list[float]
) -> None:
    assume(points[-1][1] > 0)
    life = Empirical(points)
    assert life.cdf(ages) == pytest.approx([slow_cdf(points, age) for age in ages], abs=1e-12)
    assert float(life.cdf(ages[0])) == life.cdf(ages)[0]


@given(POINTS, st.lists(st.floats(0, 1, exclude_max=True), min_size=1))
def test_a_measured_lifetime_is_the_first_age_by_which_its_share_is_gone(
    points: list[tuple[float, float]], numbers: list[float]
) -> None:
    assume(points[-1][1] > 0)
    lives = Empirical(points).sample(Given(numbers), len(numbers))
    for number, life in zip(numbers, lives.tolist(), strict=True):
        share = 1 - number
        if share > points[-1][1]:
            assert life == math.inf
        else:
            assert slow_cdf(points, life + 1e-9) >= share - 1e-9
            assert slow_cdf(points, life - 1e-9) <= share + 1e-9


def test_at_a_jump_many_end_at_once_and_the_rest_lives_for_ever() -> None:
    lives = Empirical([(10.0, 0.0), (10.0, 0.25)]).sample(np.random.default_rng(3), 10_000)
    assert set(lives.tolist()) == {10.0, math.inf}
    assert np.mean(lives == 10.0) == pytest.approx(0.25, abs=0.015)


def slow_kaplan_meier(lives: list[float], revoked: list[bool], age: float) -> float:
    alive = 1.0
    for moment in sorted(set(lives)):
        if moment <= age:
            at_risk = sum(life >= moment for life in lives)
            gone = sum(life == moment and end for life, end in zip(lives, revoked, strict=True))
            alive *= 1 - gone / at_risk
    return 1 - alive


@given(st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=40))
def test_a_sample_with_nodes_given_back_alive_is_estimated_as_kaplan_and_meier_do(
    sample: list[tuple[int, bool]],
) -> None:
    lives, revoked = [float(age) for age, _ in sample], [end for _, end in sample]
    assume(any(revoked))
    life = Empirical.of_sample(lives, revoked)
    ages = [age / 2 for age in range(22)]
    expected = [slow_kaplan_meier(lives, revoked, age) for age in ages]
    assert life.cdf(ages) == pytest.approx(expected, abs=1e-12)


def test_kaplan_and_meier_by_hand() -> None:
    # 6 nodes: of 6 one goes at 1 h, one is given back at 2 h, of 4 two go at 3 h, two remain.
    lives = [1 * HOUR, 2 * HOUR, 3 * HOUR, 3 * HOUR, 4 * HOUR, 4 * HOUR]
    life = Empirical.of_sample(lives, [True, False, True, True, False, False])
    at = [0.9 * HOUR, HOUR, 2.9 * HOUR, 3 * HOUR, 1e9]
    assert life.cdf(at) == pytest.approx([0, 1 / 6, 1 / 6, 1 - 5 / 6 * 2 / 4, 1 - 5 / 12])
    assert life.text == "measured, 10 % gone by 60.0 min, 50 % gone by 3.00 h, 41.7 % never"


def test_a_plain_sample_is_drawn_from_itself() -> None:
    lives = Empirical.of_sample([5.0, 7.0, 7.0, 9.0]).sample(np.random.default_rng(5), 8_000)
    ages, counts = np.unique(lives, return_counts=True)
    assert ages.tolist() == [5.0, 7.0, 9.0]
    assert (counts / 8_000).tolist() == pytest.approx([0.25, 0.5, 0.25], abs=0.02)


@pytest.mark.parametrize(
    ("lives", "revoked", "complaint"),
    [
        ([1.0, 2.0], [False, False], "no node of the sample was revoked"),
        ([1.0, 0.0], None, "a lifetime of the sample is not above 0"),
        ([1.0, math.nan], None, "a lifetime of the sample is not above 0"),
        ([], None, "no node of the sample was revoked"),
    ],
)
def test_a_sample_that_tells_nothing_is_refused(
    lives: list[float], revoked: list[bool] | None, complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint):
        Empirical.of_sample(lives, revoked)


@pytest.mark.parametrize(
    ("points", "complaint"),
    [
        ([], "nothing was ever revoked"),
        ([(1.0, 0.0)], "nothing was ever revoked"),
        ([(2.0, 0.1), (1.0, 0.2)], r"an age of 1 s comes after one of 2 s"),
        ([(1.0, 0.2), (2.0, 0.1)], r"a share of 0\.1 comes after one of 0\.2"),
        ([(1.0, 1.1)], r"a share is 1\.1, expected .* between 0 and 1"),
        ([(1.0, math.nan)], "a share is nan"),
        ([(-1.0, 0.1)], "an age is -1 s"),
        ([(math.inf, 0.1)], "an age is inf s"),
        ([(0.0, 0.1)], r"a share of 0\.1 is revoked at the age 0 s"),
    ],
)
def test_points_that_no_measurement_gives_are_refused(
    points: list[tuple[float, float]], complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint):
        Empirical(points)


# What people write.


@pytest.mark.parametrize(
    ("text", "life"),
    [
        ("never", Never()),
        ("exponential:10h", Exponential(10 * HOUR)),
        (" weibull:1h30min, 0.8 ", Weibull(1.5 * HOUR, 0.8)),
        ("bathtub:24h,1h,48min", Bathtub(DAY, HOUR, 0.8 * HOUR, DAY)),
        ("bathtub:24h,1h,48min,23h", Bathtub(DAY, HOUR, 0.8 * HOUR, 23 * HOUR)),
    ],
)
def test_a_lifetime_is_read_from_text(text: str, life: Lifetime) -> None:
    assert parse(text, "--lifetime") == life


@pytest.mark.parametrize(
    ("life", "text"),
    [
        (Never(), "never revoked"),
        (Exponential(10 * HOUR), "exponential, mean 10.00 h"),
        (Weibull(10 * HOUR, 0.8), "Weibull, scale 10.00 h, shape 0.8"),
        (
            SMOOTH["bathtub"],
            "bathtub, 50 % early (tau 60.0 min), the rest before 24.00 h (tau 48.0 min)",
        ),
        (GCE, "measured, 10 % gone by 60.0 min, 50 % gone by 24.00 h, 90 % gone by 24.00 h"),
        (Empirical([(HOUR, 0.05)]), "measured, 5 % gone by 60.0 min, 95 % never"),
    ],
)
def test_a_lifetime_says_what_it_is(life: Lifetime, text: str) -> None:
    assert life.text == text


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "expected never, exponential:10h, weibull"),
        ("expo:10h", "expected never, exponential:10h"),
        ("never:1h", "expected never, exponential:10h"),
        ("weibull:10h", "expected never, exponential:10h"),
        ("bathtub:24h,1h", "expected never, exponential:10h"),
        ("sample:", "expected never, exponential:10h"),
        ("exponential:10", "the mean is '10', expected a number with its unit"),
        ("exponential:-10h", "the mean is '-10h', expected a number with its unit"),
        ("exponential:0h", "the mean of an exponential lifetime is 0 s, expected"),
        ("weibull:10h,x", "the shape is 'x', expected a number"),
        ("weibull:10h,0", "the shape of a Weibull lifetime is 0, expected 0.1 to 100"),
        ("weibull:10h,-1", "the shape of a Weibull lifetime is -1, expected 0.1 to 100"),
        ("weibull:10h,nan", "the shape of a Weibull lifetime is nan, expected 0.1 to 100"),
        ("weibull:10h,0.01", "the shape of a Weibull lifetime is 0.01, expected 0.1 to 100"),
        ("weibull:0s,1", "the scale of a Weibull lifetime is 0 s"),
        ("bathtub:24h,0h,1h", "tau1 of a bathtub lifetime is 0 s"),
        ("bathtub:24h,1h,1h,1", "b is '1', expected a number with its unit"),
        ("sample:none.csv", r"none\.csv cannot be read: No such file"),
    ],
)
def test_what_is_no_lifetime_is_refused_by_name(folder: Path, text: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=f"--lifetime is '{text}'.*{complaint}"):
        parse(text, "--lifetime", folder)


KINDS = st.sampled_from(["never", "exponential:", "weibull:", "bathtub:", "sample:", ""])


@given(KINDS, st.text() | st.text("0123456789hms,. -e"))
@example("sample:", "a\0b")
@example("sample:", ".")
@example("sample:", "a" * 5000)
def test_any_text_is_a_lifetime_or_is_refused(folder: Path, kind: str, rest: str) -> None:
    try:
        life = parse(kind + rest, "--lifetime", folder)
    except UsageError:
        return
    assert life.sample(np.random.default_rng(1), 3).min() > 0


def field(folder: Path, text: str) -> Lifetime:
    path = folder / "prices.yaml"
    path.write_text(text, encoding="utf-8")
    return from_field(load(path).need("lifetime"), folder)


def test_a_file_gives_a_lifetime_as_text_or_as_points(folder: Path) -> None:
    assert field(folder, "lifetime: exponential:10h") == Exponential(10 * HOUR)
    life = field(folder, "lifetime: {empirical: [[0h, 0], [2h, 0.2], [24h, 0.3], [24h, 1]]}")
    assert life.cdf([HOUR, 13 * HOUR, DAY]) == pytest.approx([0.1, 0.25, 1])


AWKWARD = (
    *ALL.values(),
    Exponential(1e12 / 3),
    Weibull(0.001 * math.pi, 1 / 3),
    Empirical.of_sample([1e-3 / 3, 7200.1, 1e11 / 7], [True, True, False]),
)


@pytest.mark.parametrize("life", AWKWARD, ids=lambda life: life.text)
def test_a_lifetime_that_is_written_reads_back_to_the_last_bit(
    folder: Path, life: Lifetime
) -> None:
    back = field(folder, f"lifetime: {life.yaml}")
    draws = [one.sample(np.random.default_rng(3), 500).tolist() for one in (life, back)]
    assert draws[0] == draws[1]
    assert back.yaml == life.yaml


@pytest.mark.parametrize(
    ("points", "line", "complaint"),
    [
        ("[2h, 0.2]\n  - [1h, 0.3]", 4, "an age of 3600 s comes after one of 7200 s"),
        ("[2h, 0.2]\n  - [3h, 0.1]", 4, r"a share of 0\.1 comes after one of 0\.2"),
        ("[2h, 0.2]\n  - [3h, 1.2]", 4, r"empirical\[1\]\[1\] is 1\.2, expected at most 1"),
        ("[2h, 0.2]\n  - [3, 0.3]", 4, "'3', expected a number with its unit"),
        ("[2h]", 3, "has 1 values, expected an age and a share"),
        ("2h", 3, "expected a list"),
        ("[2h, 0]", 2, "nothing was ever revoked"),
        ("[0s, 0.5]", 3, r"a share of 0\.5 is revoked at the age 0 s"),
    ],
)
def test_wrong_points_in_a_file_are_reported_with_their_line(
    folder: Path, points: str, line: int, complaint: str
) -> None:
    with pytest.raises(UsageError, match=rf"prices\.yaml, line {line}: .*{complaint}"):
        field(folder, f"lifetime:\n empirical:\n  - {points}\n")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("lifetime: expo:1h", r"line 1: lifetime is 'expo:1h', expected never"),
        ("lifetime: [1h]", "line 1: lifetime is a list, expected a mapping"),
        ("lifetime: {points: []}", "line 1: lifetime.points is not known here"),
        ("a: 1\nlifetime: {empirical: }", "line 2: there is no empirical of lifetime"),
        ("lifetime: {empirical: []}", "line 1: lifetime.empirical: nothing was ever revoked"),
        ("lifetime: 'sample:s.csv'", r"line 1: .*s\.csv, line 3: lifetime is '2', expected"),
    ],
)
def test_a_wrong_lifetime_in_a_file_is_reported_with_its_line(
    folder: Path, text: str, complaint: str
) -> None:
    (folder / "s.csv").write_text("lifetime\n1h\n2\n")
    with pytest.raises(UsageError, match=complaint):
        field(folder, text)


# Files of lifetimes.


@given(st.lists(st.tuples(st.integers(1, 10**6), st.booleans()), min_size=1))
def test_a_file_of_lifetimes_is_read_back(folder: Path, rows: list[tuple[int, bool]]) -> None:
    assume(any(end for _, end in rows))
    ages = [float(age) for age, _ in rows]
    ended = [end for _, end in rows]
    path = folder / "lives.csv"
    expected = Empirical.of_sample(ages, ended).cdf(ages)
    for column, unit in (("lifetime_s", ""), ("lifetime", "s")):
        lines = [f"{column},revoked", *(f"{age}{unit},{end:d}" for age, end in rows)]
        path.write_text("\n".join(lines))
        assert (measured(path).cdf(ages) == expected).all()
        assert (parse("sample:lives.csv", "it", folder).cdf(ages) == expected).all()


@given(st.integers(0, 20), st.integers(0, 20))
@pytest.mark.parametrize("bad", ["0s,1", "5,1", "x,1", ",1", "5s,2", "5s,yes", "5s", "-1s,1"])
def test_a_mistake_planted_in_a_line_of_lifetimes_is_reported_with_that_line(
    folder: Path, bad: str, before: int, after: int
) -> None:
    path = folder / "planted.csv"
    lines = ["lifetime,revoked", *["5s,1"] * before, bad, *["7s,0"] * after]
    path.write_text("\n".join(lines))
    with pytest.raises(UsageError, match=rf"planted\.csv, line {before + 2}: "):
        measured(path)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "there is no lifetime in it"),
        ("lifetime\n", "there is no lifetime in it"),
        ("life\n5s\n", "line 2: life is not known here; did you mean lifetime"),
        ("lifetime,lifetime_s\n5s,5\n", "line 2: both lifetime and lifetime_s are there"),
        ("lifetime,revoked\n5s,0\n", "no node of the sample was revoked"),
    ],
)
def test_a_file_without_lifetimes_is_refused(folder: Path, text: str, complaint: str) -> None:
    path = folder / "wrong.csv"
    path.write_text(text)
    with pytest.raises(UsageError, match=rf"wrong\.csv.*{complaint}"):
        measured(path)


@given(st.binary(max_size=100))
def test_any_bytes_are_lifetimes_or_are_refused(folder: Path, content: bytes) -> None:
    path = folder / "bytes.csv"
    path.write_bytes(b"lifetime_s,revoked\n" + content)
    try:
        life = measured(path)
    except UsageError:
        return
    assert life.sample(np.random.default_rng(1), 3).min() > 0
