"""``spotmpi prices``: a price list of what a cloud's own commands print."""

from __future__ import annotations

import argparse
import datetime
import math
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from spotmpi.economy.market import clouds, gpus, prices
from spotmpi.economy.market.clouds import Band, Quote
from spotmpi.economy.market.lifetimes import Exponential, Lifetime, Never
from spotmpi.errors import SpotmpiError, UsageError

__all__ = ["add_arguments", "main"]

_OFTEN, _SELDOM = "often", "seldom"
_BAND = {
    _OFTEN: "the upper end of the advisor's band, at a constant rate",
    _SELDOM: "the lower end of the advisor's band, at a constant rate",
}
"""The two ends of a band, as studies that disagree."""
_SHOWN = 6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.description = (
        "Make a price list for `spotmpi plan` of files that you fetch yourself: EC2's spot price "
        "history, its advisor's data on interruptions, Azure's retail prices; what they do not say "
        "comes from price lists that you name beside them."
    )
    parser.epilog = (
        "aws ec2 describe-spot-price-history --start-time $(date -u +%FT%TZ) > history.json\n"
        "curl -O https://spot-bid-advisor.s3.amazonaws.com/spot-advisor-data.json\n\n"
        "example: spotmpi prices history.json spot-advisor-data.json --zone us-east-1a -o now.yaml"
    )
    add = parser.add_argument
    add("files", nargs="+", type=Path, metavar="FILE", help="JSON of a cloud, or price lists")
    add("--zone", metavar="ZONE", help="where nodes are rented, as us-east-1a or westeurope")
    add("--types", metavar="TYPE,...", help="only these types (all that have a price)")
    add("-o", "--output", type=Path, metavar="FILE", help="write it there (standard output)")


@dataclass
class _Entry:
    """What is known of one type."""

    spot: float | None = None
    on_demand: float | None = None
    band: Band | None = None
    lifetime: Lifetime | None = None
    """What a list says of it."""
    studied: dict[str, Lifetime] = field(default_factory=dict)
    """What studies of lists say of it."""
    rest: dict[str, float] = field(default_factory=dict)
    """Seconds of notice, start and boot, from lists."""


def main(options: argparse.Namespace) -> int:
    """Read, choose, write. Local, blocking."""
    quotes: list[Quote] = []
    bands: list[Band] = []
    lists: list[prices.Prices] = []
    as_of = datetime.date.min
    for path in options.files:
        if path.suffix.lower() == ".json":
            found = clouds.read(path)
            quotes += found.prices
            bands += found.bands
            if any(quote.spot for quote in found.prices):  # what is on demand hardly changes
                as_of = max(as_of, found.as_of)
        else:
            lists.append(prices.load(path))
    if not any(quote.spot for quote in quotes):
        raise UsageError("none of these files has a spot price of today; name a price history too")
    zone = _zone(quotes, options.zone)
    entries = _entries(quotes, bands, lists, zone)
    if options.types is not None:
        wanted = options.types.split(",")
        if missing := [name for name in wanted if name not in entries]:
            raise UsageError(f"--types: {missing[0]} has no price in {zone}")
        entries = {name: entries[name] for name in wanted}
    elif unpriced := sorted({name for list_ in lists for name in list_.offers} - entries.keys()):
        print(
            f"spotmpi prices: left out, as no cloud's file has a price of them in {zone}: "
            f"{_some(unpriced)}",
            file=sys.stderr,
        )
    studies: dict[str, str] = {}
    for list_ in lists:
        studies = {**list_.studies, **studies}
    text = "\n".join(_lines(entries, studies, zone, as_of, options.files)) + "\n"
    if options.output is None:
        print(text, end="")
        return 0
    try:
        options.output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SpotmpiError(f"{options.output} cannot be written: {error.strerror}") from error
    print(f"{len(entries)} types of {zone}, prices of {as_of}: {options.output}")
    return 0


def _zone(quotes: Iterable[Quote], wanted: str | None) -> str:
    """Where: as prices differ from zone to zone, and a cluster is in one, it must be said."""
    there = Counter(quote.place for quote in quotes if quote.spot)
    if wanted is None and len(there) == 1:
        return next(iter(there))
    if wanted is not None and wanted in there:
        return wanted
    known = _some(sorted(there))
    if wanted is None:
        raise UsageError(f"prices differ from zone to zone; say --zone, one of {known}")
    raise UsageError(f"--zone {wanted}: there is no price; there are some of {known}")


def _some(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")


def _entries(
    quotes: Iterable[Quote], bands: Iterable[Band], lists: Iterable[prices.Prices], zone: str
) -> dict[str, _Entry]:
    entries: dict[str, _Entry] = {}
    newest: dict[tuple[str, bool], datetime.date] = {}
    for quote in quotes:
        key = quote.instance, quote.spot
        if zone not in (quote.place, *_zones_of(quote.place, zone)) or quote.since < newest.get(
            key, quote.since
        ):
            continue
        newest[key] = quote.since
        entry = entries.setdefault(quote.instance, _Entry())
        if quote.spot:
            entry.spot = quote.dollars_per_hour
        else:
            entry.on_demand = quote.dollars_per_hour
    for band in bands:
        if band.instance in entries and zone in (band.region, *_zones_of(band.region, zone)):
            entries[band.instance].band = band
    for list_ in lists:
        for name, offer in list_.offers.items():
            if name not in entries:
                continue
            entry = entries[name]
            entry.on_demand = entry.on_demand or offer.on_demand
            entry.lifetime = entry.lifetime or offer.lifetime
            entry.studied = {**offer.studied, **entry.studied}
            rest = {"notice": offer.notice_s or None, "start": offer.start_s, "boot": offer.boot_s}
            entry.rest = {k: v for k, v in rest.items() if v is not None} | entry.rest
    return entries


def _zones_of(region: str, zone: str) -> tuple[str, ...]:
    """EC2 names a zone by its region and a letter."""
    return (zone,) if zone[:-1] == region and zone[-1].isalpha() else ()


def _lines(
    entries: dict[str, _Entry],
    studies: dict[str, str],
    zone: str,
    as_of: datetime.date,
    files: Iterable[Path],
) -> list[str]:
    named = ", ".join(path.name for path in files)
    lines = [
        f"as_of: {as_of}",
        f'source: "{_plain(zone)}, from {_plain(named)}"',
        "currency: USD",
        "billing: second",
    ]
    if any(entry.band is not None for entry in entries.values()):
        lines += [
            "# The advisor has a band for the part that is reclaimed in a month. Both of its ends",
            "# stand below, at a constant rate; the upper one only where somebody says it.",
        ]
        studies = studies | _BAND
    lives = {name: _lifetimes(entry) for name, entry in entries.items()}
    if told := [one for one in studies if any(one in life for life in lives.values())]:
        lines.append("studies:")
        lines += [f'  "{_plain(one)}": "{_plain(studies[one])}"' for one in told]
    lines.append("instances:")
    known = gpus.shipped()
    for name, entry in sorted(entries.items()):
        lines.append(f'  "{_plain(name)}":')
        if (has := known.described(name)) is not None:
            lines.append(f"    # {has}")
        if entry.spot is not None:
            lines.append(f"    spot: {entry.spot:.6g}")
        if entry.on_demand is not None:
            lines.append(f"    on_demand: {entry.on_demand:.6g}")
        if entry.lifetime is not None:
            lines.append(f"    lifetime: {entry.lifetime.yaml}")
        elif lives[name]:
            each = [f'"{_plain(study)}": {life.yaml}' for study, life in lives[name].items()]
            lines.append(f"    lifetime: {{{', '.join(each)}}}")
        lines += [f"    {key}: {value:.6g}s" for key, value in entry.rest.items()]
    return lines


def _lifetimes(entry: _Entry) -> dict[str, Lifetime]:
    """What studies say of it, the advisor's band among them; nothing where a list says it."""
    if entry.lifetime is not None:
        return {}
    return entry.studied if entry.band is None else entry.studied | _ends(entry.band)


def _ends(band: Band) -> dict[str, Lifetime]:
    short, long = band.mean_s
    ends: dict[str, Lifetime] = {} if short is None else {_OFTEN: Exponential(short)}
    return {**ends, _SELDOM: Never() if math.isinf(long) else Exponential(long)}


def _plain(text: str) -> str:
    """Safe between quotes in YAML."""
    return "".join(c if c.isprintable() and c not in '"\\' else "?" for c in text)
