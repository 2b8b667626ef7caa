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

__all__ = ["NAMES", "named"]

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
    given: dict[str, str] = {}
    for option, value in [_option(name, one) for one in said.split(",") if said]:
        if option in given:
            raise UsageError(f"--strategy {name} has the option {option} twice: give it once")
        given[option] = value
    form = given.pop(_NARROW, None)
    usual = {one.name: one.default for one in inspect.signature(NAMES[name]).parameters.values()}
    options = {key: _number(name, key, value, usual) for key, value in given.items()}
    try:
        strategy = NAMES[name](**options)
        return strategy if form is None else Narrow(form) >> strategy
    except UsageError as error:
        raise UsageError(f"--strategy {text}: {error}") from None


def _option(name: str, text: str) -> tuple[str, str]:
    option, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--strategy {name} has the option {text!r}, expected one like h=8")
    return option, value


def _number(name: str, option: str, value: str, usual: dict[str, float]) -> float:
    if option not in usual:
        there = ", ".join(f"{known}={default}" for known, default in usual.items())
        there += (", " if there else "") + f"{_NARROW}={'|'.join(FORMATS)}"
        raise UsageError(f"the strategy {name} has no option {option!r}; it has {there}")
    kind = type(usual[option])
    try:
        return kind(value)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        said = f"the option {option} of the strategy {name} is {value!r}, expected {what}"
        raise UsageError(f"{said} such as {usual[option]}") from None
