"""Price lists: what ships, what users bring, and what an hour costs."""

from __future__ import annotations

import json
import math
import re
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotmpi.economy.market.lifetimes import Exponential, Never
from spotmpi.economy.market.prices import Offer, Prices, cost, load, shipped
from spotmpi.errors import UsageError

HOUR = 3600.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("prices")


def of_yaml(folder: Path, text: str) -> Prices:
    path = folder / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return load(path)


def of_csv(folder: Path, text: str) -> Prices:
    path = folder / "mine.csv"
    path.write_text(text, encoding="utf-8")
    return load(path)


# What ships.


def test_the_prices_of_the_measurement_study_are_those_of_its_table() -> None:
    prices = shipped("icac19")
    assert (prices.name, prices.as_of[:7], prices.billing) == ("icac19", "2019-02", "second")
    assert "Table II" in prices.source
    assert {name: (o.on_demand, o.spot) for name, o in prices.offers.items()} == {
        "K80": (0.723, 0.256),
        "P100": (1.43, 0.551),
        "V100": (2.144, 0.861),
        "PS": (0.143, 0.041),
    }
    assert {offer.notice_s for offer in prices.offers.values()} == {30.0}


@pytest.mark.parametrize(
    ("name", "hours", "gone"),
    [("K80", 0.9, 28 / 448), ("P100", 1.5, 2 / 32), ("V100", 1.23, 14 / 32)],
)
def test_lifetimes_of_the_measurement_study_have_its_revocations(
    name: str, hours: float, gone: float
) -> None:
    life = shipped("icac19").by_study("trained", []).offer(name).lifetime
    assert life is not None
    assert float(life.cdf(hours * HOUR)) == pytest.approx(gone, abs=1e-12)
    assert float(life.cdf(24 * HOUR)) == 1
    if name != "V100":
        assert 1 - float(life.cdf(23.999 * HOUR)) == pytest.approx(0.7, abs=0.001)


@pytest.mark.parametrize(
    ("name", "gone", "of"),
    [("K80", 5, 64), ("P100", 0, 40), ("V100", 2, 48)],
)
def test_the_other_study_says_something_else(name: str, gone: int, of: int) -> None:
    """152 servers that were watched to their end."""
    life = shipped("icac19").by_study("watched", []).offer(name).lifetime
    assert life is not None
    assert float(life.cdf(2 * HOUR)) == pytest.approx(gone / of, abs=1e-4)
    assert float(life.cdf(24 * HOUR)) == 1


def test_of_two_studies_none_is_taken_in_silence() -> None:
    prices = shipped("icac19")
    assert prices.by_study(None, ["PS"]) is prices  # of it there is no study
    with pytest.raises(
        UsageError, match=r"how long V100 nodes live; say --study trained \(46 % ar"
    ) as e:
        prices.by_study(None, ["PS", "V100"])
    assert "or --study watched (4 % are gone after 2 h; 152 servers" in str(e.value)
    with pytest.raises(UsageError, match="no study 'watch'; did you mean watched"):
        prices.by_study("watch", ["V100"])
    with pytest.raises(UsageError, match="no study 'watched'; it has only one lifetime each"):
        shipped("2023").by_study("watched", [])


def test_studies_of_a_file_are_named_once_and_then_used(folder: Path) -> None:
    head = "as_of: 2026-01-31\nstudies: {mine: 3 nodes, theirs: 9 nodes}\ninstances:\n"
    prices = of_yaml(
        folder, head + '  a: {spot: 1, lifetime: {mine: never, theirs: "exponential:2h"}}\n'
    )
    assert prices.by_study("mine", ["a"]).offer("a").lifetime == Never()
    assert prices.by_study("theirs", ["a"]).offer("a").lifetime == Exponential(2 * HOUR)
    with pytest.raises(UsageError, match=r"line 4: instances.a.lifetime.hers is not known here"):
        of_yaml(folder, head + "  a: {spot: 1, lifetime: {hers: never}}\n")


def test_servers_of_the_study_trained_for_54_minutes_on_average() -> None:
    # The age of the first point of K80: Table III's times, by the servers of 32 clusters each.
    times = {2: 2.16, 4: 1.05, 8: 0.51}
    servers = {size: 32 * size for size in times}
    assert sum(servers.values()) == 448
    mean = sum(times[size] * count for size, count in servers.items()) / 448
    assert mean == pytest.approx(0.9)


def test_the_prices_of_2023_are_those_of_the_paper() -> None:
    prices = shipped("2023")
    assert (prices.offer("g3.8xl").spot, prices.offer("g3.16xl").spot) == (0.684, 1.3676)
    assert [o.on_demand for o in prices.offers.values()] == [3.06, 1.204, 2.28, 4.56, 7.2, 0.192]
    assert "p3.2xl: 1.25 in its Table III" in prices.source
    for name in ("p3.2xl", "g4dn.4xl", "p2.8xl"):
        offer = prices.offer(name)
        assert offer.on_demand is not None
        assert offer.spot == pytest.approx(0.3 * offer.on_demand)
    with pytest.raises(UsageError, match=r"m5\.xlarge has no spot price, only one of 0\.192 \$/h"):
        prices.offer("m5.xlarge").price("spot")


def test_prices_that_are_not_shipped_are_refused_with_a_near_name() -> None:
    with pytest.raises(UsageError, match=r"no price list 'icac': .* shipped; did you mean icac19"):
        shipped("icac")
    with pytest.raises(UsageError, match="known are 2023, icac19"):
        shipped("../secret")


# Offers.


def test_an_offer_has_a_price_on_its_markets() -> None:
    both = Offer("K80", 0.256, 0.723, None, 30, 60)
    assert (both.price("spot"), both.price("on-demand")) == (0.256, 0.723)
    with pytest.raises(UsageError, match=r"K80 has no on-demand price, only one of 0\.256 \$/h as"):
        Offer("K80", 0.256, None, None, 30, 60).price("on-demand")


@pytest.mark.parametrize("price", [0.0, -1.0, math.nan, math.inf])
def test_an_offer_costs_something(price: float) -> None:
    with pytest.raises(UsageError, match=r"K80 costs .* \$/h, expected more than 0"):
        Offer("K80", 0.256, price, None, 30, 60)
    with pytest.raises(UsageError, match="K80 has no price"):
        Offer("K80", None, None, None, 30, 60)


def test_an_unknown_instance_is_refused_with_a_near_name() -> None:
    with pytest.raises(UsageError, match=r"of icac19 have no instance 'k80'; did you mean K80\?"):
        shipped("icac19").offer("k80")
    with pytest.raises(UsageError, match="'TPU'; known are K80, P100, PS, V100"):
        shipped("icac19").offer("TPU")


# Cost.


def test_seconds_are_charged_as_they_are() -> None:
    assert cost(3601, 0.723, "second") == pytest.approx(3601 * 0.723 / 3600)
    assert cost(0.5, 3600, "second") == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("seconds", "hours"),
    [(0, 0), (1, 1), (3599, 1), (3600, 1), (3600.0000001, 1), (3600.01, 2), (3601, 2), (7200, 2)],
)
def test_an_hour_that_has_begun_is_charged_whole(seconds: float, hours: int) -> None:
    # 3601 s is the paper's own example: "the cost would instead be based on two hours".
    assert cost(seconds, 2.0, "hour") == 2.0 * hours


@given(st.floats(0, 1e8), st.floats(0, 1e8), st.floats(1e-3, 1e3))
def test_longer_never_costs_less_and_hours_never_less_than_seconds(
    one: float, other: float, price: float
) -> None:
    short, long = sorted((one, other))
    assert cost(short, price, "second") <= cost(long, price, "second")
    assert cost(short, price, "hour") <= cost(long, price, "hour")
    assert cost(long, price, "hour") >= cost(long, price, "second") - 2e-9 * price
    assert cost(long, price, "hour") <= cost(long + 3600, price, "second") + 2e-9 * price


# Files.


FULL = """\
as_of: 2026-01-31
source: the invoice of January
billing: hour
currency: USD
instances:
  a:
    spot: 0.5
    on_demand: 0.4   # dearer as spot: there are such days
    lifetime: exponential:10h
    notice: 2min
    start: 90s
  b: {on_demand: 1}
"""


def test_a_yaml_file_is_read_whole(folder: Path) -> None:
    path = folder / "mine.yaml"
    assert of_yaml(folder, FULL) == Prices(
        str(path),
        "2026-01-31",
        "the invoice of January",
        "hour",
        {
            "a": Offer("a", 0.5, 0.4, Exponential(10 * HOUR), 120.0, 90.0),
            "b": Offer("b", None, 1.0, None, 0.0, None),
        },
    )


def test_a_csv_file_is_undated_and_billed_by_the_second(folder: Path) -> None:
    text = "name,spot,on_demand,notice,lifetime\na,0.5,,30s,\n# c\nb,,1,,'x'\n"
    path = folder / "mine.csv"
    prices = of_csv(folder, text.replace("'x'", '"weibull:10h,0.8"'))
    assert (prices.name, prices.as_of, prices.source) == (str(path), "undated", str(path))
    assert prices.billing == "second"
    assert prices.offer("a") == Offer("a", 0.5, None, None, 30.0, None)
    life = prices.offer("b").lifetime
    assert life is not None
    assert life.text == "Weibull, scale 10.00 h, shape 0.8"


def test_a_file_of_lifetimes_is_sought_beside_the_prices(folder: Path) -> None:
    below = folder / "below"
    below.mkdir()
    (below / "lives.csv").write_text("lifetime\n1h\n3h\n")
    for name, text in (
        ("p.yaml", "as_of: 2026-01-31\ninstances: {a: {spot: 1, lifetime: 'sample:lives.csv'}}"),
        ("p.csv", "name,spot,lifetime\na,1,sample:lives.csv\n"),
    ):
        (below / name).write_text(text)
        life = load(below / name).offer("a").lifetime
        assert life is not None
        assert float(life.cdf(2 * HOUR)) == 0.5


NAMES = st.text(
    st.characters(codec="utf-8", exclude_characters=":,=#", exclude_categories=["Z", "C"]),
    min_size=1,
).filter(lambda name: name not in {"~", "null"})
PRICE = st.floats(1e-4, 1e4)
OFFERS = st.dictionaries(
    NAMES,
    st.tuples(PRICE | st.none(), PRICE | st.none(), st.integers(0, 600)).filter(
        lambda offer: offer[:2] != (None, None)
    ),
    min_size=1,
    max_size=8,
)


def offers(raw: dict[str, tuple[float | None, float | None, int]]) -> dict[str, Offer]:
    return {
        name: Offer(name, spot, on_demand, None, float(notice), None)
        for name, (spot, on_demand, notice) in raw.items()
    }


@given(OFFERS, st.dates(max_value=date.today()), st.sampled_from(["second", "hour"]))
def test_what_is_written_as_yaml_is_read_back(
    folder: Path, raw: dict[str, Any], day: Any, billing: str
) -> None:
    instances = {
        name: {"spot": spot, "on_demand": on_demand, "notice": f"{notice}s"}
        for name, (spot, on_demand, notice) in raw.items()
    }
    # JSON in ASCII is YAML, but for the halves of characters that it would need beyond U+FFFF.
    text = json.dumps(
        {"as_of": str(day), "billing": billing, "instances": instances}, ensure_ascii=False
    )
    read = of_yaml(folder, text)
    assert read.offers == offers(raw)
    assert list(read.offers) == list(raw)
    assert (read.as_of, read.billing) == (str(day), billing)


@given(OFFERS)
def test_what_is_written_as_csv_is_read_back(folder: Path, raw: dict[str, Any]) -> None:
    def cell(value: object) -> str:
        return "" if value is None else '"' + str(value).replace('"', '""') + '"'

    lines = ["name,spot,on_demand,notice"]
    for name, (spot, on_demand, notice) in raw.items():
        lines.append(",".join(map(cell, (name, spot, on_demand, f"{notice}s"))))
    assert of_csv(folder, "\n".join(lines)).offers == offers(raw)


@pytest.mark.parametrize(
    ("old", "new", "line", "complaint"),
    [
        ("2026-01-31", "yesterday", 1, "as_of is 'yesterday', expected a date as 2019-02-01"),
        ("2026-01-31", "2026-02-30", 1, "as_of is '2026-02-30', expected a date"),
        ("2026-01-31", "20260131", 1, "as_of is '20260131', expected a date"),
        ("2026-01-31", "9026-01-31", 1, "as_of is 9026-01-31, which is in the future"),
        ("spot: 0.5", "spot: 1e300", 7, r"instances.a.spot is 1e\+300 \$/h, expected at most"),
        ("as_of: 2026-01-31\n", "\n", 2, "there is no as_of, which is needed"),
        ("hour", "minute", 3, "billing is 'minute', expected second or hour"),
        ("USD", "EUR", 4, "currency is 'EUR', expected USD"),
        ("currency", "curency", 4, "curency is not known here; did you mean currency"),
        ("spot: 0.5", "spot: 0", 7, r"instances.a.spot is 0 \$/h, expected more than 0"),
        ("spot: 0.5", "spot: -1", 7, r"instances.a.spot is -1 \$/h, expected more than 0"),
        ("spot: 0.5", "spot: $1", 7, r"instances.a.spot is '\$1', expected a number of \$/h"),
        ("spot: 0.5", "spt: 0.5", 7, "instances.a.spt is not known here; did you mean spot"),
        ("10h", "10", 9, "the mean is '10', expected a number with its unit"),
        ("2min", "120", 10, "instances.a.notice is '120', expected a number with its unit"),
        ("90s", "-90s", 11, "instances.a.start is '-90s', expected a number with its unit"),
        ("  b:", "  a:", 12, "instances.a is there twice"),
        ("on_demand: 1", "notice: 1s", 12, "b has no price; give spot, on_demand or both"),
        ("  b:", "  b c:", 12, "an instance is named 'b c', expected no blank"),
        ("b: {on_demand: 1}", "b: 1", 12, "instances.b is '1', expected a mapping"),
    ],
)
def test_a_mistake_in_a_yaml_file_is_reported_with_its_line(
    folder: Path, old: str, new: str, line: int, complaint: str
) -> None:
    with pytest.raises(UsageError, match=rf"mine\.yaml, line {line}: .*{complaint}"):
        of_yaml(folder, FULL.replace(old, new, 1))


@given(st.integers(0, 20), st.integers(0, 20))
@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        ("x,0,1,", r"spot is 0 \$/h, expected more than 0"),
        ("x,1,nan,", r"on_demand is 'nan', expected a number"),
        ("x,,,", "x has no price"),
        ("x,1,1,30", "notice is '30', expected a number with its unit"),
        (",1,1,", "there is no name"),
        ("x,1,1", "3 values, expected 4"),
        ("x y,1,1,", "an instance is named 'x y'"),
        ("first,1,1,", "first is there twice"),
    ],
)
def test_a_mistake_planted_in_a_line_of_a_csv_is_reported_with_that_line(
    folder: Path, bad: str, complaint: str, before: int, after: int
) -> None:
    good = [f"good{i},1,,30s" for i in range(before + after)]
    lines = ["name,spot,on_demand,notice", "first,1,2,", *good[:before], bad, *good[before:]]
    with pytest.raises(UsageError, match=rf"mine\.csv, line {before + 3}: .*{complaint}"):
        of_csv(folder, "\n".join(lines))


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("e.csv", "", "there is no instance in it"),
        ("e.csv", "name,spot\n", "there is no instance in it"),
        ("e.csv", "name,price\na,1\n", "line 2: price is not known here; known are name"),
        ("e.yaml", "as_of: 2026-01-31\ninstances: {}\n", "line 2: there is no instance in it"),
        ("e.yaml", "as_of: 2026-01-31\n", "there is no instances, which is needed"),
        ("e.yaml", "- a: 1\n", "line 1: the file is a list, expected a mapping"),
    ],
)
def test_a_file_without_prices_is_refused(
    folder: Path, name: str, text: str, complaint: str
) -> None:
    path = folder / name
    path.write_text(text)
    with pytest.raises(UsageError, match=rf"{re.escape(name)}, .*{complaint}"):
        load(path)


@given(st.binary(max_size=100))
@pytest.mark.parametrize(
    ("suffix", "head"),
    [
        ("csv", b"name,spot,on_demand,lifetime,notice\n"),
        ("yaml", b"as_of: 2026-01-31\ninstances:\n  a:\n    spot: "),
        ("yaml", b""),
    ],
)
def test_any_bytes_are_prices_or_are_refused(
    folder: Path, suffix: str, head: bytes, content: bytes
) -> None:
    path = folder / f"bytes.{suffix}"
    path.write_bytes(head + content)
    try:
        prices = load(path)
    except UsageError:
        return
    assert prices.offers


@given(st.lists(st.text("a1.,:{}[]\"'#-%s \n\t", max_size=12), min_size=5, max_size=20))
@pytest.mark.parametrize("suffix", ["csv", "yaml"])
def test_any_text_is_prices_or_is_refused(folder: Path, suffix: str, words: list[str]) -> None:
    path = folder / f"text.{suffix}"
    lines = FULL.splitlines() if suffix == "yaml" else ["name,spot,on_demand", "a,1,2", "b,2,3"]
    mixed = [line + word for line, word in zip(lines, words, strict=False)]
    path.write_text("\n".join([*mixed, *lines[len(mixed) :]]))
    try:
        prices = load(path)
    except UsageError:
        return
    assert prices.offers
