"""What nodes cost: dated price lists, shipped and of users.

A YAML file::

    as_of: 2019-02-01            # needed: prices age
    source: where they are from  # without it, the file's path
    billing: second              # or hour
    currency: USD                # the only one; may be left out
    instances:
      K80:
        spot: 0.256              # $/h; a type needs one price at least
        on_demand: 0.723         # $/h
        lifetime: exponential:10h   # of a spot node, as `lifetimes` reads it; unknown without it
        notice: 30s              # between the announcement of a revocation and the end
        start: 2min              # between asking for a node and its first step; unknown without
        boot: 90s                # the part of it that is billed: from the node's creation; else all

Where studies disagree on how long nodes live, the list names them and has a lifetime from each;
whoever uses the list must say which one holds (`Prices.by_study`)::

    studies:
      one: what was watched, when, and how many
      other: the same of another
    instances:
      K80:
        lifetime: {one: "exponential:10h", other: never}

A CSV has a row for each type: the columns ``name`` and ``spot`` or ``on_demand`` or both, and maybe
``lifetime``, ``notice``, ``start`` and ``boot``. It has no head, so it is undated, billed per
second, and its own source; who wants to say otherwise writes YAML. ``notice`` counts as 0 s where
it is left out. A spot price above the one on demand is legal: there are such days.
"""

from __future__ import annotations

import datetime
import difflib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Literal

from spotmpi.economy.market.lifetimes import Lifetime, from_field
from spotmpi.economy.quantities import HOUR, percent
from spotmpi.economy.reading import Field
from spotmpi.economy.reading import load as load_fields
from spotmpi.errors import UsageError

__all__ = ["Billing", "Market", "Offer", "Prices", "cost", "find", "load", "shipped"]

Market = Literal["spot", "on-demand"]

Billing = Literal["second", "hour"]

_OFFER = ("spot", "on_demand", "lifetime", "notice", "start", "boot")
_NAME = re.compile(r"[^\s:,=]+")
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_SHIPPED = "prices-"
_DEAREST = 1e5
"""$/h: beyond it a file has a slip."""
_FRESH_DAYS = 30


@dataclass(frozen=True)
class Offer:
    """One instance type. UsageError without any price, or for one that is not above 0."""

    name: str
    spot: float | None
    """$/h, revocable."""
    on_demand: float | None
    """$/h, for as long as one wants."""
    lifetime: Lifetime | None
    """Of a spot node; None if nobody knows."""
    notice_s: float
    """Between the announcement of a revocation and the end of the node."""
    start_s: float | None
    """Between asking for a node and its first step; None if nobody knows."""
    boot_s: float | None = None
    """Between its creation, from which it is billed, and its first step; None if nobody knows."""
    studied: Mapping[str, Lifetime] = field(default_factory=dict)
    """What each study of a list says of its lifetime, where there are several."""

    def __post_init__(self) -> None:
        if self.spot is None and self.on_demand is None:
            raise UsageError(f"{self.name} has no price; give spot, on_demand or both")
        for price in (self.spot, self.on_demand):
            if price is not None and not 0 < price < math.inf:
                raise UsageError(f"{self.name} costs {price:g} $/h, expected more than 0")

    def price(self, market: Market) -> float:
        """$/h. UsageError if it has no price on that market."""
        price, other = self.spot, self.on_demand
        if market == "on-demand":
            price, other = other, price
        if price is None:
            raise UsageError(
                f"{self.name} has no {market} price, only one of {other:g} $/h"
                f" {'on demand' if market == 'spot' else 'as spot'}; add it to the prices"
            )
        return price


@dataclass(frozen=True)
class Prices:
    """A price list."""

    name: str
    """The path of its file, or the name that `shipped` knows it by."""
    as_of: str
    """A date as 2019-02-01, or ``undated``."""
    source: str
    """Where the prices are from, for people."""
    billing: Billing
    offers: Mapping[str, Offer]
    """By the names of instance types, in the order of the file."""
    studies: Mapping[str, str] = field(default_factory=dict)
    """What each study watched, for people; their names lead to `Offer.studied`."""
    study: str | None = None
    """Whose lifetimes the offers have; None: none has been chosen."""

    def by_study(self, study: str | None, names: Iterable[str]) -> Prices:
        """The same list with the lifetimes of one study.

        UsageError if there is no such study; or if ``study`` is None and several say something
        of one of ``names``, as nobody but the user can say which is right.
        """
        if study is None:
            for name in names:
                if (offer := self.offer(name)).studied:
                    raise UsageError(self._several(offer))
            return self
        if study not in self.studies:
            known = _near(study, self.studies) if self.studies else "it has only one lifetime each"
            raise UsageError(f"the prices of {self.name} have no study {study!r}; {known}")
        offers = {
            name: replace(offer, lifetime=offer.studied.get(study, offer.lifetime))
            for name, offer in self.offers.items()
        }
        return replace(self, offers=offers, study=study)

    def _several(self, offer: Offer) -> str:
        each = " or ".join(
            f"--study {study} ({percent(float(life.cdf(2 * HOUR)))} are gone after 2 h; "
            f"{self.studies[study]})"
            for study, life in offer.studied.items()
        )
        return f"studies disagree on how long {offer.name} nodes live; say {each}, or --lifetime"

    @property
    def age(self) -> str:
        """A warning, in parentheses, where the prices are old or undated; else nothing."""
        if self.as_of == "undated":
            return ""
        days = (datetime.date.today() - datetime.date.fromisoformat(self.as_of)).days
        return f" ({days:,} days old: look up today's)" if days > _FRESH_DAYS else ""

    def offer(self, name: str) -> Offer:
        """The offer of an instance type. UsageError, with a near name, if there is none."""
        if name not in self.offers:
            near = _near(name, self.offers)
            if not near.endswith("?"):
                near += "; a type must have the same name in the profile and in the prices"
            raise UsageError(f"the prices of {self.name} have no instance {name!r}; {near}")
        return self.offers[name]


def cost(seconds: float, dollars_per_hour: float, billing: Billing) -> float:
    """Dollars for one node that one had for ``seconds``.

    Per second every part of a second counts as what it is: no rounding up, and no least time,
    though some clouds charge a first minute whole. Per hour each hour that has begun counts whole.
    Times are sums of floats, so what is less than 4 microseconds into an hour has not begun it.
    """
    if billing == "hour":
        return math.ceil(seconds / HOUR - 1e-9) * dollars_per_hour
    return seconds / HOUR * dollars_per_hour


def load(path: Path) -> Prices:
    """A user's price list, YAML or CSV (by its suffix ``.csv``), as above.

    Local, blocking. UsageError, with the line, for whatever is wrong in it.
    """
    return _prices(path, str(path))


def find(name: str) -> Prices:
    """The price list of a file, or a shipped one where there is no such file."""
    return load(Path(name)) if Path(name).suffix or Path(name).exists() else shipped(name)


def shipped(name: str) -> Prices:
    """A price list that comes with spotmpi: ``icac19`` or ``2023``. UsageError for another."""
    folder = resources.files("spotmpi.economy") / "data"
    files = {
        file.name.removeprefix(_SHIPPED).removesuffix(".yaml"): file
        for file in folder.iterdir()
        if file.name.startswith(_SHIPPED)
    }
    if name not in files:
        raise UsageError(
            f"there is no price list {name!r}: name a file, or one that is shipped; "
            f"{_near(name, files)}"
        )
    with resources.as_file(files[name]) as path:
        return _prices(path, name)


def _near(name: str, known: Mapping[str, object]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(known))}"


def _prices(path: Path, name: str) -> Prices:
    root = load_fields(path)
    if path.suffix.lower() == ".csv":
        offers: dict[str, Offer] = {}
        for row in root.elements():
            row.only("name", *_OFFER)
            called = row.need("name")
            if called.text() in offers:
                called.wrong(f"{called.text()} is there twice")
            offers[called.text()] = _offer(called.text(), row, path.parent, {})
        if not offers:
            root.wrong("there is no instance in it, expected a line of column names and one each")
        return Prices(name, "undated", name, "second", offers)
    root.only("as_of", "source", "billing", "currency", "studies", "instances")
    currency = root.get("currency")
    if currency is not None:
        currency.text("USD")
    billing, source, instances = root.get("billing"), root.get("source"), root.need("instances")
    told = root.get("studies")
    studies = {} if told is None else {name: field.text() for name, field in told.items()}
    offers = {
        called: _instance(called, field, path, studies) for called, field in instances.items()
    }
    if not offers:
        instances.wrong("there is no instance in it, expected names as in K80: {spot: 0.256}")
    hourly = billing is not None and billing.text("second", "hour") == "hour"
    return Prices(
        name,
        _date(root.need("as_of")),
        name if source is None else source.text(),
        "hour" if hourly else "second",
        offers,
        studies,
    )


def _date(field: Field) -> str:
    text = field.text()
    try:
        if not _DATE.fullmatch(text):
            raise ValueError
        date = datetime.date.fromisoformat(text)
    except ValueError:
        field.wrong(f"{field.name} is {text!r}, expected a date as 2019-02-01")
    # A day more: it may be tomorrow already where the prices were read.
    if date > datetime.date.today() + datetime.timedelta(days=1):
        field.wrong(f"{field.name} is {text}, which is in the future: nobody knows such prices")
    return text


def _instance(name: str, field: Field, path: Path, studies: Mapping[str, str]) -> Offer:
    field.only(*_OFFER)
    return _offer(name, field, path.parent, studies)


def _offer(name: str, field: Field, folder: Path, studies: Mapping[str, str]) -> Offer:
    """An offer of a mapping whose keys are known to be right."""
    if not _NAME.fullmatch(name):
        field.wrong(f"an instance is named {name!r}, expected no blank, colon, comma or = in it")
    spot, on_demand = _price(field.get("spot")), _price(field.get("on_demand"))
    lifetime, studied = _lifetimes(field.get("lifetime"), folder, studies)
    if spot is None and on_demand is None:
        field.wrong(f"{name} has no price; give spot, on_demand or both")
    return Offer(
        name,
        spot,
        on_demand,
        lifetime,
        _seconds(field.get("notice")),
        None if (start := field.get("start")) is None else start.seconds(),
        None if (boot := field.get("boot")) is None else boot.seconds(),
        studied,
    )


def _lifetimes(
    field: Field | None, folder: Path, studies: Mapping[str, str]
) -> tuple[Lifetime | None, Mapping[str, Lifetime]]:
    """The lifetime, or what several studies say of it."""
    if field is None:
        return None, {}
    if not (studies and field.is_mapping and field.get("empirical") is None):
        return from_field(field, folder), {}
    field.only(*studies)
    return None, {study: from_field(one, folder) for study, one in field.items()}


def _price(field: Field | None) -> float | None:
    return None if field is None else field.number("$/h", above=0, most=_DEAREST)


def _seconds(field: Field | None) -> float:
    return 0.0 if field is None else field.seconds()
