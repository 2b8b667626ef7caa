"""What becomes of rented nodes, and what that costs a training: the options of several commands."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from spotmpi.economy.market import availability, lifetimes
from spotmpi.economy.market.prices import Market, Prices
from spotmpi.economy.plan import rental
from spotmpi.economy.plan.events import Runtime
from spotmpi.economy.plan.rental import (
    CHECKPOINT_EVERY_S,
    CHECKPOINT_S,
    RECOVERY_S,
    RESTART_S,
    Terms,
)
from spotmpi.economy.quantities import Cluster, duration, time_text
from spotmpi.errors import UsageError

__all__ = ["Runtimes", "add_arguments", "offered", "runtimes", "terms"]


@dataclass(frozen=True)
class Runtimes:
    """Two ways to live with losses: with spotmpi, and with restarts from the last checkpoint."""

    spotmpi: Runtime
    restarting: Runtime


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options."""
    fate = parser.add_mutually_exclusive_group()
    fate.add_argument(
        "--lifetime", metavar="L", help="how long workers live, instead of the price list's"
    )
    fate.add_argument(
        "--trace", metavar="FILE", help="a recording of how many nodes there were, or p3"
    )
    add = parser.add_argument
    add("--study", metavar="NAME", help="whose lifetimes, where studies in the price list disagree")
    add("--notice", metavar="D", help="a revocation is announced so long ahead, as 30s")
    add(
        "--replacement",
        metavar="D",
        help="a lost node is replaced after so long; or never (price list)",
    )
    add(
        "--boot",
        metavar="D",
        help="a node trains so long after its creation, which is paid (price list)",
    )
    add(
        "--together",
        metavar="P,...",
        help="nodes of a type go at once with this probability, or as in a trace (FILE); zone:P: "
        "nodes of all types do",
    )
    add(
        "--recovery",
        metavar="D",
        help=f"a loss stops spotmpi for so long ({time_text(RECOVERY_S)})",
    )
    add(
        "--restart",
        metavar="D",
        help=f"time of a restart from a checkpoint ({time_text(RESTART_S)})",
    )
    add(
        "--checkpoint-every",
        metavar="D",
        help=f"time between checkpoints ({time_text(CHECKPOINT_EVERY_S)})",
    )
    add("--checkpoint-cost", metavar="D", help=f"time to write one ({time_text(CHECKPOINT_S)})")


def offered(options: argparse.Namespace, list_: Prices, names: Iterable[str]) -> Prices:
    """The prices with the lifetimes of --study. UsageError where they are needed, and studies
    disagree on one of ``names``, and none is chosen."""
    elsewhere = next((f"--{n}" for n in ("lifetime", "trace") if getattr(options, n)), None)
    if elsewhere is None:
        return list_.by_study(options.study, names)
    if options.study is not None:
        raise UsageError(f"--study and {elsewhere} both say how long nodes live; leave one out")
    return list_


def terms(
    options: argparse.Namespace,
    wanted: Cluster,
    option: str,
    *,
    market: Market = "spot",
    server_market: Market = "on-demand",
) -> Terms:
    """On which terms nodes are rented. ``wanted`` is what ``option`` names. Reads files, blocking;
    UsageError for what contradicts itself."""
    if market == "on-demand" and (options.trace or options.lifetime):
        raise UsageError("--on-demand nodes are not revoked: leave out --lifetime and --trace")
    if options.trace is not None and options.together:
        raise UsageError("--trace says which nodes go together: leave out --together")
    if options.trace is not None and (options.notice or options.replacement):
        raise UsageError(
            "--trace says when nodes come and go: leave out --notice and --replacement"
        )
    if options.trace is not None and len(wanted) > 1:
        raise UsageError(
            f"--trace says how many nodes there are, not of which type, and {option} has "
            f"{len(wanted)} types; name one"
        )
    together = {} if options.together is None else _together(options.together)
    return Terms(
        market=market,
        lifetime=None
        if options.lifetime is None
        else lifetimes.parse(options.lifetime, "--lifetime"),
        notice_s=_duration(options.notice, "--notice", None),
        replacement_s=rental.replacement(options.replacement),
        boot_s=_duration(options.boot, "--boot", None),
        availability=None if options.trace is None else availability.find(options.trace),
        server_market=server_market,
        together=together.get("type", 0.0),
        zone=together.get("zone", 0.0),
    )


def _together(text: str) -> dict[str, float]:
    """What goes as one: a ``type`` (or nothing said), or a whole ``zone``."""
    found: dict[str, float] = {}
    for part in text.split(","):
        level, colon, value = part.partition(":")
        if level not in ("type", "zone") or not colon:
            level, value = "type", part
        if level in found:
            raise UsageError(f"--together is {text!r}, which says {level} twice")
        found[level] = _part_together(value)
    return found


def _part_together(text: str) -> float:
    """A probability, or the part of a trace's losses that were not single ones."""
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        return availability.find(text).together
    part = number / 100 if text.endswith("%") else number
    if not 0 <= part <= 1:
        raise UsageError(f"--together is {text!r}, expected a probability as 0.4 or 40%, or a FILE")
    return part


def runtimes(options: argparse.Namespace) -> Runtimes:
    """What losses and checkpoints cost. UsageError for what is no time."""
    restart_s = _duration(options.restart, "--restart", RESTART_S)
    every_s = _duration(options.checkpoint_every, "--checkpoint-every", CHECKPOINT_EVERY_S)
    writing_s = _duration(options.checkpoint_cost, "--checkpoint-cost", CHECKPOINT_S)
    if every_s == 0:
        raise UsageError("--checkpoint-every is 0, expected more")
    recovery_s = _duration(options.recovery, "--recovery", RECOVERY_S)
    return Runtimes(
        rental.spotmpi(recovery_s, restart_s, every_s, writing_s),
        rental.restarting(restart_s, every_s, writing_s),
    )


_Default = TypeVar("_Default", float, None)


def _duration(text: str | None, what: str, default: _Default) -> float | _Default:
    return default if text is None else duration(text, what)
