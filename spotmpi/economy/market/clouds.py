"""What clouds themselves say of spot nodes, in the files that anybody can get.

`read` tells them apart by what is in them:

- the price history of EC2, as ``aws ec2 describe-spot-price-history`` prints it: a price for each
  type and zone, and since when;
- the advisor's file of EC2 (``spot-advisor-data.json``): for each region and type the band in which
  the part lies that was reclaimed in the last month;
- prices on demand of EC2, as ``aws pricing get-products --service-code AmazonEC2`` prints them, or
  a region's price list file (``.../AmazonEC2/current/REGION/index.json``), if it is small enough;
- the retail prices of Azure (``https://prices.azure.com/api/retail/prices``): spot and on demand,
  for each type and region.

Of Linux only, in dollars. Nothing is fetched here.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spotmpi.economy.quantities import HOUR
from spotmpi.economy.reading import from_json, text_of
from spotmpi.errors import UsageError

__all__ = ["Band", "Quote", "Quotes", "read"]

_LARGEST = 1 << 27
"""Bytes. The price history of all types of a region for some weeks has about 50 MB."""
_MONTH_S = 30 * 24 * HOUR


@dataclass(frozen=True)
class Quote:
    """One price."""

    instance: str
    place: str
    """A zone of EC2, a region of Azure."""
    spot: bool
    dollars_per_hour: float
    since: datetime.date


@dataclass(frozen=True)
class Band:
    """The part of a type's nodes that was reclaimed in a month is within these."""

    instance: str
    region: str
    low: float
    high: float
    """1: nobody says how many at most."""

    @property
    def mean_s(self) -> tuple[float | None, float]:
        """Of the lifetimes if nodes go at a constant rate: the shortest and the longest mean.
        None: not known; infinite: never revoked."""
        return (None if self.high >= 1 else _mean_s(self.high)), _mean_s(self.low)


@dataclass
class Quotes:
    """What a file says."""

    prices: list[Quote] = field(default_factory=list)
    bands: list[Band] = field(default_factory=list)
    as_of: datetime.date = datetime.date.min
    """The day at which the prices held; the first one ever: it says nothing of that."""


def _mean_s(part: float) -> float:
    return _MONTH_S / -math.log1p(-part) if part > 0 else math.inf


def read(path: Path) -> Quotes:
    """The quotes of a file, as above. Local, blocking; UsageError for whatever is wrong in it."""
    root = from_json(path, text_of(path, _LARGEST))
    try:
        if isinstance(root, dict) and "SpotPriceHistory" in root:
            prices = list(_history(root["SpotPriceHistory"]))
            newest = max((quote.since for quote in prices), default=datetime.date.min)
            return Quotes(prices=prices, as_of=newest)
        if isinstance(root, dict) and "spot_advisor" in root:
            return Quotes(bands=list(_advisor(root)))
        if isinstance(root, dict) and "PriceList" in root:
            told: list[Any] = [
                from_json(path, one) if isinstance(one, str) else one for one in root["PriceList"]
            ]
            return _on_demand([(one["product"], one["terms"], _day(one)) for one in told])
        if isinstance(root, dict) and root.get("offerCode") == "AmazonEC2":
            terms, day = root["terms"]["OnDemand"], _day(root)
            return _on_demand(
                [
                    (product, {"OnDemand": terms.get(sku, {})}, day)
                    for sku, product in root["products"].items()
                ]
            )
        if isinstance(root, dict) and "Items" in root:
            # It says since when prices hold, which may be years; they did when it was fetched.
            fetched = datetime.datetime.fromtimestamp(path.stat().st_mtime).date()
            return Quotes(prices=list(_azure(root["Items"])), as_of=fetched)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"{path} looks like a cloud's prices, and is not complete: {error!r}; fetch it again"
        ) from error
    raise UsageError(
        f"{path} is none of the files that are known here: describe-spot-price-history of EC2, its "
        "spot-advisor-data.json, its prices on demand (aws pricing get-products), or retail "
        "prices of Azure"
    )


def _price(value: Any) -> float:
    price = float(value)
    if not 0 < price < math.inf:
        raise ValueError(f"a price is {price:g}")
    return price


def _history(entries: list[Mapping[str, Any]]) -> Iterator[Quote]:
    for entry in entries:
        if not entry.get("ProductDescription", "Linux/UNIX").startswith("Linux/UNIX"):
            continue
        since = datetime.date.fromisoformat(entry["Timestamp"][:10])
        price = _price(entry["SpotPrice"])
        yield Quote(entry["InstanceType"], entry["AvailabilityZone"], True, price, since)


_SHARED = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
}
"""Of an ordinary instance: no license, no host of its own, no reservation."""


def _day(told: Mapping[str, Any]) -> datetime.date:
    return datetime.date.fromisoformat(told["publicationDate"][:10])


def _on_demand(
    entries: list[tuple[Mapping[str, Any], Mapping[str, Any], datetime.date]],
) -> Quotes:
    found = Quotes()
    for product, terms, day in entries:
        said = product["attributes"]
        if any(said.get(name) != value for name, value in _SHARED.items()):
            continue
        found.as_of = max(found.as_of, day)
        for term in terms.get("OnDemand", {}).values():
            for one in term["priceDimensions"].values():
                dollars = float(one["pricePerUnit"].get("USD", 0))
                if one["unit"] == "Hrs" and dollars > 0:
                    price = _price(dollars)
                    quote = Quote(said["instanceType"], said["regionCode"], False, price, day)
                    found.prices.append(quote)
    return found


def _advisor(root: Mapping[str, Any]) -> Iterator[Band]:
    bounds: list[tuple[float, float]] = []
    low = 0.0
    for band in sorted(root["ranges"], key=lambda one: int(one["index"])):
        # The file's 11, 16 and 22 are its 10, 15 and 20: the labels say "5-10%".
        high = min(5 * (int(band["max"]) // 5), 100) / 100
        if not low < high <= 1:
            raise ValueError(f"the band {band['label']!r} ends at {band['max']}")
        bounds.append((low, high))
        low = high
    for region, systems in root["spot_advisor"].items():
        for instance, told in systems.get("Linux", {}).items():
            yield Band(instance, region, *bounds[int(told["r"])])


def _azure(items: list[Mapping[str, Any]]) -> Iterator[Quote]:
    for item in items:
        name, kind = item["skuName"], item["type"]
        other = "Windows" in item["productName"] or name.endswith("Low Priority")
        if kind != "Consumption" or other or item["currencyCode"] != "USD":
            continue
        if item["serviceName"] != "Virtual Machines" or not item.get("armSkuName"):
            continue
        since = datetime.date.fromisoformat(item["effectiveStartDate"][:10])
        price = _price(item["retailPrice"])
        spot = name.endswith("Spot")
        yield Quote(item["armSkuName"], item["armRegionName"], spot, price, since)
