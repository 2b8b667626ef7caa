"""Policies by name, as ``--policy`` writes them: ``best:again=60/ssgd/diloco:h=16``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields

from spotmpi.errors import UsageError
from spotmpi.policies.policy import Policy
from spotmpi.policies.shipped import Best, Fixed, Schedule, StragglerAware, ThroughputBelow
from spotmpi.strategies import SSGD, DiLoCo, LocalSGD, Strategy
from spotmpi.strategies import named as strategy_named
from spotmpi.strategies.names import numbers_of, options_of

__all__ = ["NAMES", "named"]

NAMES: Mapping[str, Callable[..., Policy]] = {
    one.__name__.lower(): one for one in (Best, Fixed, Schedule, StragglerAware, ThroughputBelow)
}
"""The classes of all shipped policies, by name."""


def named(text: str) -> Policy:
    """Return the policy with this name, its options and its strategies. UsageError lists what there
    is."""
    head, *rest = text.split("/")
    name, _, said = head.partition(":")
    if name not in NAMES:
        raise UsageError(f"there is no policy {name!r}; there are {', '.join(NAMES)}")
    kind = NAMES[name]
    usual = {
        one.name: one.default
        for one in fields(kind)  # type: ignore[arg-type]  # all of them are dataclasses
        if isinstance(one.default, int | float)
    }
    options = numbers_of(f"the policy {name}", options_of(f"the policy {name}", said, usual), usual)
    try:
        return _made(kind, rest, options)
    except UsageError as error:
        raise UsageError(f"--policy {text}: {error}") from None


def _made(kind: Callable[..., Policy], rest: Sequence[str], options: Mapping[str, float]) -> Policy:
    """Return a policy that decides among these strategies; each may decide without some of them."""
    if kind is Schedule:
        begins = dict(steps := list(map(_step, rest)))
        if len(begins) < len(steps):
            raise UsageError("it names a step twice")
        return Schedule(begins)
    follows = [strategy_named(one) for one in rest]
    if kind is Best:
        return Best(follows or [SSGD(), LocalSGD(), DiLoCo()], **options)
    names = ("strategy",) if kind is Fixed else ("first", "then")
    if len(follows) > len(names):
        most = "one strategy" if len(names) == 1 else f"{len(names)} strategies"
        raise UsageError(f"it takes {most} at most, not {len(follows)}")
    # One alone is what it goes to: it begins with what it usually begins with.
    return kind(**dict(zip(names[-len(follows) :], follows, strict=False)), **options)


def _step(text: str) -> tuple[int, Strategy]:
    begins, equals, strategy = text.partition("=")
    if not equals or not (begins.isascii() and begins.isdigit()):
        raise UsageError(f"{text!r} has no first step and strategy, expected one like 1000=ssgd")
    return int(begins), strategy_named(strategy)
