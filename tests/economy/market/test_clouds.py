"""What clouds say of spot nodes, made into price lists."""

from __future__ import annotations

import datetime
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotmpi import cli
from spotmpi.economy.market import clouds, prices
from spotmpi.errors import UsageError

HOUR = 3600.0
MONTH = 30 * 24 * HOUR
TODAY = datetime.date.today()


def entry(zone: str, price: str, day: datetime.date = TODAY, **more: str) -> dict[str, str]:
    return {
        "AvailabilityZone": zone,
        "InstanceType": "p3.2xlarge",
        "ProductDescription": "Linux/UNIX",
        "SpotPrice": price,
        "Timestamp": f"{day.isoformat()}T03:04:05+00:00",
        **more,
    }


HISTORY = {
    "SpotPriceHistory": [
        entry("us-east-1a", "0.918000"),
        entry("us-east-1a", "1.250000", TODAY - datetime.timedelta(9)),
        entry("us-east-1b", "1.100000"),
        entry("us-east-1a", "4.000000", ProductDescription="Windows"),
        entry("us-east-1a", "0.500000", InstanceType="g5.xlarge"),
        entry("us-east-1a", "2.000000", InstanceType="g6.xlarge"),
    ]
}
ADVISOR = {
    "ranges": [
        {"index": 0, "label": "<5%", "dots": 0, "max": 5},
        {"index": 1, "label": "5-10%", "dots": 1, "max": 11},
        {"index": 2, "label": "10-15%", "dots": 2, "max": 16},
        {"index": 3, "label": "15-20%", "dots": 3, "max": 22},
        {"index": 4, "label": ">20%", "dots": 4, "max": 100},
    ],
    "instance_types": {},
    "spot_advisor": {
        "us-east-1": {
            "Linux": {
                "p3.2xlarge": {"s": 70, "r": 1},
                "g5.xlarge": {"s": 50, "r": 0},
                "g6.xlarge": {"s": 50, "r": 4},
            }
        },
        "eu-west-1": {"Linux": {"p3.2xlarge": {"s": 70, "r": 3}}},
    },
}
AZURE = {
    "Items": [
        {
            "currencyCode": "USD",
            "retailPrice": price,
            "armRegionName": "westeurope",
            "effectiveStartDate": "2021-05-01T00:00:00Z",
            "productName": f"Virtual Machines NCSv3 Series{windows}",
            "skuName": f"NC6s v3{kind}",
            "serviceName": "Virtual Machines",
            "type": "Consumption",
            "armSkuName": "Standard_NC6s_v3",
        }
        for price, kind, windows in (
            (3.06, "", ""),
            (0.61, " Spot", ""),
            (0.7, " Low Priority", ""),
            (9.0, "", " Windows"),
        )
    ]
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in (("history", HISTORY), ("advisor", ADVISOR), ("azure", AZURE)):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert cli.main(["prices", *arguments]) == code
    streams = capsys.readouterr()
    return streams.out if code == 0 else streams.err


def test_the_newest_price_of_a_zone_counts(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    out = folder / "now.yaml"
    told = said(capsys, str(folder / "history.json"), "--zone", "us-east-1a", "-o", str(out))
    assert told == f"3 types of us-east-1a, prices of {TODAY}: {out}\n"
    read = prices.load(out)
    assert {name: offer.spot for name, offer in read.offers.items()} == {
        "g5.xlarge": 0.5,
        "g6.xlarge": 2.0,
        "p3.2xlarge": 0.918,
    }
    assert (read.as_of, read.age) == (TODAY.isoformat(), "")
    assert read.offer("p3.2xlarge").on_demand is read.offer("p3.2xlarge").lifetime is None


def test_a_band_is_two_lifetimes_of_which_one_must_be_chosen(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    out = folder / "now.yaml"
    both = (str(folder / "history.json"), str(folder / "advisor.json"))
    said(capsys, *both, "--zone", "us-east-1a", "-o", str(out))
    read = prices.load(out)
    with pytest.raises(UsageError, match="studies disagree on how long p3"):
        read.by_study(None, ["p3.2xlarge"])
    gone = {}
    for study in ("often", "seldom"):
        for name, offer in read.by_study(study, []).offers.items():
            life = offer.lifetime
            gone[study, name] = None if life is None else float(life.cdf(MONTH))
    assert gone["often", "p3.2xlarge"] == pytest.approx(0.10, rel=1e-4)
    assert gone["seldom", "p3.2xlarge"] == pytest.approx(0.05, rel=1e-4)
    assert gone["seldom", "g5.xlarge"] == 0
    # Of more than 20 % nobody says how many at most.
    assert gone["often", "g6.xlarge"] is None
    assert gone["seldom", "g6.xlarge"] == pytest.approx(0.20, rel=1e-4)


def test_other_lists_say_what_the_cloud_does_not(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    mine = folder / "mine.csv"
    mine.write_text("name,spot,on_demand,notice,boot\np3.2xlarge,9,3.06,2min,90s\nother,1,2,,\n")
    arguments = (str(folder / "history.json"), str(mine), "--zone", "us-east-1b")
    out = folder / "now.yaml"
    said(capsys, *arguments, "-o", str(out))
    (offer,) = prices.load(out).offers.values()
    assert (offer.spot, offer.on_demand) == (1.1, 3.06)
    assert (offer.notice_s, offer.boot_s) == (120, 90)


def test_lifetimes_of_a_list_of_one_s_own_are_kept(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    """As they are written there, whichever kind they are of, and whatever the advisor says."""
    mine, lives = folder / "mine.csv", folder / "lives.csv"
    lives.write_text("lifetime\n1h\n90min\n")
    mine.write_text(
        "name,spot,lifetime,start\n"
        "p3.2xlarge,1,exponential:3h,0s\n"
        'g5.xlarge,1,"weibull:10h,0.8",3min\n'
        "g6.xlarge,1,sample:lives.csv,3min\n"
    )
    files = [str(folder / name) for name in ("history.json", "advisor.json", "mine.csv")]
    out = folder / "elsewhere" / "now.yaml"
    out.parent.mkdir()
    said(capsys, *files, "--zone", "us-east-1a", "-o", str(out))
    told, read = prices.load(mine), prices.load(out)
    ages = [0.5 * HOUR, HOUR, 1.2 * HOUR, 3 * HOUR]
    for name in ("p3.2xlarge", "g5.xlarge", "g6.xlarge"):
        life, original = read.offer(name).lifetime, told.offer(name).lifetime
        assert life is not None
        assert original is not None
        assert life.cdf(ages).tolist() == original.cdf(ages).tolist()
    assert read.offer("p3.2xlarge").start_s == 0, "known, and no time at all"
    assert not read.studies, "there is nothing to choose from"


def test_what_studies_in_a_list_of_one_s_own_say_is_kept(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    mine = folder / "mine.yaml"
    mine.write_text(
        "as_of: 2026-01-01\n"
        "studies: {watched: what we saw, seldom: of old}\n"
        "instances:\n"
        '  p3.2xlarge: {spot: 1, lifetime: {watched: "exponential:7h", seldom: "never"}}\n'
        '  g5.xlarge: {spot: 1, lifetime: {watched: "bathtub:24h,1h,48min"}}\n'
    )
    files = [str(folder / name) for name in ("history.json", "advisor.json", "mine.yaml")]
    out = folder / "now.yaml"
    said(capsys, *files, "--zone", "us-east-1a", "-o", str(out))
    read = prices.load(out)
    assert sorted(read.offer("p3.2xlarge").studied) == ["often", "seldom", "watched"]
    assert read.studies["watched"] == "what we saw"
    watched = read.by_study("watched", [])
    for name in ("p3.2xlarge", "g5.xlarge"):
        assert watched.offer(name).lifetime == prices.load(mine).offer(name).studied["watched"]
    life = read.by_study("seldom", []).offer("p3.2xlarge").lifetime
    assert life is not None
    assert float(life.cdf(MONTH)) == pytest.approx(0.05, rel=1e-4), "the advisor's, of today"


def test_types_of_a_list_without_a_price_of_today_are_named(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    mine = folder / "mine.csv"
    mine.write_text("name,spot\np3.2xlarge,9\np3.2xl,1\n")
    files = (str(folder / "history.json"), str(mine), "--zone", "us-east-1b")
    assert cli.main(["prices", *files]) == 0
    err = capsys.readouterr().err
    assert err == (
        "spotmpi prices: left out, as no cloud's file has a price of them in us-east-1b: p3.2xl\n"
    )


def test_azure_has_both_prices_and_the_day_of_the_file(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    path = folder / "azure.json"
    long_ago = datetime.datetime(2026, 1, 31).timestamp()
    os.utime(path, (long_ago, long_ago))
    out = folder / "azure.yaml"
    out.write_text(said(capsys, str(path)))
    read = prices.load(out)
    offer = read.offer("Standard_NC6s_v3")
    assert (offer.spot, offer.on_demand) == (0.61, 3.06)
    assert read.as_of == "2026-01-31"
    assert "days old: look up today's" in read.age


def product(instance: str, dollars: str, **more: str) -> dict[str, Any]:
    """As the price list service of AWS describes one, with its price."""
    attributes = {
        "instanceType": instance,
        "regionCode": "us-east-1",
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
        **more,
    }
    dimension = {"unit": "Hrs", "pricePerUnit": {"USD": dollars}}
    terms = {"OnDemand": {"S.T": {"priceDimensions": {"S.T.D": dimension}}}, "Reserved": {}}
    return {
        "product": {"sku": "S", "productFamily": "Compute Instance", "attributes": attributes},
        "terms": terms,
        "publicationDate": "2026-10-01T00:00:00Z",
    }


PRODUCTS = [
    product("p3.2xlarge", "3.0600000000"),
    product("p3.2xlarge", "9.9", operatingSystem="Windows"),
    product("p3.2xlarge", "9.8", tenancy="Dedicated"),
    product("p3.2xlarge", "0.0", capacitystatus="UnusedCapacityReservation"),
    product("g6.xlarge", "0.8048", regionCode="eu-west-1"),
]


@pytest.mark.parametrize("kind", ["get-products", "index"])
def test_ec2_prices_on_demand_stand_beside_the_spot_prices_of_a_zone(
    capsys: pytest.CaptureFixture[str], folder: Path, kind: str
) -> None:
    path = folder / "on-demand.json"
    if kind == "get-products":
        path.write_text(json.dumps({"PriceList": [json.dumps(one) for one in PRODUCTS]}))
    else:
        whole: dict[str, Any] = {
            "offerCode": "AmazonEC2",
            "publicationDate": "2026-10-01T00:00:00Z",
            "products": {str(i): one["product"] for i, one in enumerate(PRODUCTS)},
            "terms": {
                "OnDemand": {str(i): one["terms"]["OnDemand"] for i, one in enumerate(PRODUCTS)}
            },
        }
        path.write_text(json.dumps(whole))
    out = folder / "now.yaml"
    out.write_text(said(capsys, str(folder / "history.json"), str(path), "--zone", "us-east-1a"))
    read = prices.load(out)
    offer = read.offer("p3.2xlarge")
    assert (offer.spot, offer.on_demand) == (0.918, 3.06)
    assert read.offer("g6.xlarge").on_demand is None
    assert read.as_of == str(TODAY), "the day of the spot prices"
    assert "# 1 x V100, 16 GB each; in times a V100: resnet50 1" in out.read_text()


def test_only_the_types_that_are_asked_for(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    arguments = (str(folder / "history.json"), "--zone", "us-east-1a")
    out = said(capsys, *arguments, "--types", "g6.xlarge,p3.2xlarge")
    assert "g5.xlarge" not in out
    err = said(capsys, *arguments, "--types", "p4d.24xlarge", code=2)
    assert "--types: p4d.24xlarge has no price in us-east-1a" in err


def test_a_plan_takes_the_list(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    out = folder / "now.yaml"
    renamed = json.dumps(HISTORY).replace("p3.2xlarge", "p3.2xl")
    (folder / "history.json").write_text(renamed)
    said(capsys, str(folder / "history.json"), "--zone", "us-east-1a", "-o", str(out))
    question = ("--profile", "spotdnn", "--loss", "0.8", "--quota", "p3.2xl:4", "--deadline", "1h")
    assert cli.main(["plan", "--prices", str(out), *question, "--runs", "20"]) == 0
    assert f"prices of {TODAY}: us-east-1a, from history.json" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "arguments", "sentence"),
    [
        (HISTORY, (), "prices differ from zone to zone; say --zone, one of us-east-1a, us-east-1b"),
        (HISTORY, ("--zone", "mars"), "--zone mars: there is no price; there are some of us-east"),
        (ADVISOR, (), "none of these files has a spot price of today"),
        ({"a": 1}, (), "is none of the files that are known here"),
        ([1], (), "is none of the files that are known here"),
        ({"SpotPriceHistory": [{}]}, (), "looks like a cloud's prices, and is not complete"),
        ({"SpotPriceHistory": [entry("a", "-1")]}, (), "is not complete: ValueError('a price is"),
        ({"SpotPriceHistory": [entry("a", "nan")]}, (), "is not complete: ValueError('a price is"),
        ({"SpotPriceHistory": 3}, (), "looks like a cloud's prices, and is not complete"),
        ({"Items": [{"skuName": 3}]}, (), "looks like a cloud's prices, and is not complete"),
        ({"PriceList": [{}]}, (), "looks like a cloud's prices, and is not complete"),
        ({"PriceList": ["{"]}, (), "line 1: not JSON"),
        ({"spot_advisor": {}, "ranges": [{}]}, (), "looks like a cloud's prices, and is not"),
    ],
)
def test_a_file_that_is_not_right_gets_one_sentence(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    content: Any,
    arguments: tuple[str, ...],
    sentence: str,
) -> None:
    path = tmp_path / "file.json"
    path.write_text(json.dumps(content))
    err = said(capsys, str(path), *arguments, code=2)
    assert err.startswith("spotmpi prices: ")
    assert err.count("\n") == 1
    assert sentence in err


values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 200) | st.text("a1.:-", max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@given(
    st.sampled_from(["SpotPriceHistory", "spot_advisor", "ranges", "Items", "PriceList"]),
    values,
    values,
)
def test_any_json_is_quotes_or_is_refused(
    tmp_path_factory: pytest.TempPathFactory, key: str, value: Any, other: Any
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(json.dumps({key: value, "ranges": other} if key != "ranges" else value))
    try:
        found = clouds.read(path)
    except UsageError:
        return
    assert all(0 < quote.dollars_per_hour < math.inf for quote in found.prices)


def test_names_of_a_cloud_cannot_break_the_list(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "file.json"
    evil = entry('a"\nsource: "b', "1.0", InstanceType='x"y')
    path.write_text(json.dumps({"SpotPriceHistory": [evil]}))
    out = tmp_path / "out.yaml"
    out.write_text(said(capsys, str(path)))
    assert list(prices.load(out).offers) == ["x?y"]
