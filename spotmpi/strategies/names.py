"""Strategies by name, as ``--strategy`` and traces write them: ``diloco:h=64,outer=0.7``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

from spotmpi.arrays.narrowing import FORMATS
from spotmpi.errors import UsageError
from spotmpi.operators import Narrow
from spotmpi.strategies.shipped import (
    ADPSGD,
    EASGD,
    SMA,
    SSGD,
    DiLoCo,
    Gossip,
    Hogwild,
    LocalSGD,
    Lookahead,
    ParameterServer,
)
from spotmpi.strategies.strategy import Strategy

__all__ = ["NAMES", "named", "numbers_of", "options_of"]

_SHIPPED = (
    *(SSGD, Lookahead, LocalSGD, SMA, EASGD, DiLoCo),
    *(ADPSGD, Gossip, ParameterServer, Hogwild),
)

NAMES: Mapping[str, Callable[..., Strategy]] = {one.__name__.lower(): one for one in _SHIPPED}
"""The classes of all shipped strategies, by name."""

_NARROW = "narrow"


def named(text: str) -> Strategy:
    """Return the strategy with this name and options. UsageError lists what there is."""
    name, _, said = text.partition(":")
    if name not in NAMES:
        raise UsageError(f"there is no strategy {name!r}; there are {', '.join(NAMES)}")
    usual = {one.name: one.default for one in inspect.signature(NAMES[name]).parameters.values()}
    given = options_of(f"the strategy {name}", said, usual)
    form = given.pop(_NARROW, None)
    more = f"{_NARROW}={'|'.join(FORMATS)}"
    options = numbers_of(f"the strategy {name}", given, usual, more)
    try:
        strategy = NAMES[name](**options)
        return strategy if form is None else Narrow(form) >> strategy
    except UsageError as error:
        raise UsageError(f"--strategy {text}: {error}") from None


def options_of(what: str, said: str, usual: Mapping[str, float]) -> dict[str, str]:
    """Return the options in a text such as "h=8,outer=0.7". UsageError if one is no option, or is
    there twice. ``what`` has them, and ``usual`` says what they are if not given."""
    like = next((f"{name}={value}" for name, value in usual.items()), f"{_NARROW}={FORMATS[0]}")
    given: dict[str, str] = {}
    for one in said.split(",") if said else ():
        option, equals, value = one.partition("=")
        if not equals:
            raise UsageError(f"{what} has the option {one!r}, expected one like {like}")
        if option in given:
            raise UsageError(f"{what} has the option {option} twice: give it once")
        given[option] = value
    return given


def numbers_of(
    what: str, given: Mapping[str, str], usual: Mapping[str, float], more: str = ""
) -> dict[str, float]:
    """Return these options as numbers of the kinds that ``usual`` has. UsageError if one is unknown
    or no number. ``what`` has them, and ``more`` besides."""
    return {option: _number(what, option, value, usual, more) for option, value in given.items()}


def _number(what: str, option: str, value: str, usual: Mapping[str, float], more: str) -> float:
    if option not in usual:
        there = [f"{known}={default}" for known, default in usual.items()] + [more] * bool(more)
        said = f"it has {', '.join(there)}" if there else "it has none"
        raise UsageError(f"{what} has no option {option!r}; {said}")
    kind = type(usual[option])
    try:
        return kind(value)
    except ValueError:
        expected = "a whole number" if kind is int else "a number"
        raise UsageError(
            f"the option {option} of {what} is {value!r}, expected {expected} such as "
            f"{usual[option]}"
        ) from None
