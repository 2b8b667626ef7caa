"""How long a node lives before it is revoked: distributions, and how people write them.

Seconds everywhere, counted from the moment at which the node is ready; infinity is never. Nothing
here draws randomness of its own: `sample` is a function of the generator that it is given.

As a text (`parse`), on a command line or in a cell of a CSV (quoted there, if it has commas):

- ``never``
- ``exponential:MEAN``, as in ``exponential:10h``
- ``weibull:SCALE,SHAPE``, as in ``weibull:10h,0.8``
- ``bathtub:LIMIT,TAU1,TAU2`` or ``bathtub:LIMIT,TAU1,TAU2,B``, as in ``bathtub:24h,1h,48min``;
  without B it is LIMIT
- ``sample:FILE``, a CSV of measured lifetimes (`measured`)

In YAML (`from_field`) also as a mapping, ``{empirical: [[2h, 0.2], [24h, 0.3]]}``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spotmpi.economy.quantities import duration, time_text
from spotmpi.economy.reading import Field, load
from spotmpi.errors import UsageError

__all__ = [
    "Bathtub",
    "Empirical",
    "Exponential",
    "Lifetime",
    "Never",
    "Weibull",
    "from_field",
    "measured",
    "parse",
]


_SHAPES = 0.1, 100.0
"""Of a Weibull distribution that nodes may have."""


class Lifetime(Protocol):
    """A distribution of lifetimes."""

    def sample(self, rng: np.random.Generator, size: int) -> NDArray[np.float64]:
        """``size`` independent lifetimes in seconds; inf for a node that is never revoked.

        Uses one uniform number each, in order: equal generators give equal lifetimes.
        """

    def cdf(self, t: ArrayLike) -> NDArray[np.float64]:
        """The probability of being revoked by the age ``t``, in the shape of ``t``; 0 below 0."""

    @property
    def text(self) -> str:
        """What it is, for people."""

    @property
    def yaml(self) -> str:
        """What `from_field` reads back as the same, on one line of YAML; no file is named in it."""


def _uniform(rng: np.random.Generator, size: int) -> NDArray[np.float64]:
    """Uniform in (0, 1]: the inverse of a cdf at 0 would be a node that never lived."""
    return 1.0 - rng.random(size)


def _age(t: ArrayLike) -> NDArray[np.float64]:
    return np.maximum(np.asarray(t, dtype=np.float64), 0.0)


def _time(what: str, seconds: float) -> None:
    """Complain about what is no time, or one so short or long that arithmetic would suffer."""
    if not 1e-3 <= seconds <= 1e12:
        raise UsageError(
            f"{what} is {seconds:g} s, expected 0.001 s to 1e12 s, or never for a node that stays"
        )


@dataclass(frozen=True)
class Never:
    """A node that stays: on demand, or one's own."""

    def sample(self, rng: np.random.Generator, size: int) -> NDArray[np.float64]:
        """Infinities. Draws as many numbers as the others, so that what comes next is equal."""
        rng.random(size)
        return np.full(size, np.inf)

    def cdf(self, t: ArrayLike) -> NDArray[np.float64]:
        """0 at every age."""
        return np.zeros_like(_age(t))

    @property
    def text(self) -> str:
        """What it is, for people."""
        return "never revoked"

    @property
    def yaml(self) -> str:
        """What `from_field` reads back."""
        return "never"


@dataclass(frozen=True)
class Exponential:
    """Revoked at a constant rate, whatever the age. UsageError for a mean of 0."""

    mean_s: float

    def __post_init__(self) -> None:
        _time("the mean of an exponential lifetime", self.mean_s)

    def sample(self, rng: np.random.Generator, size: int) -> NDArray[np.float64]:
        """Lifetimes in seconds."""
        return -self.mean_s * np.log(_uniform(rng, size))

    def cdf(self, t: ArrayLike) -> NDArray[np.float64]:
        """1 - exp(-t / mean)."""
        return -np.expm1(-_age(t) / self.mean_s)

    @property
    def text(self) -> str:
        """What it is, for people."""
        return f"exponential, mean {time_text(self.mean_s)}"

    @property
    def yaml(self) -> str:
        """What `from_field` reads back."""
        return f'"exponential:{_seconds(self.mean_s)}"'


@dataclass(frozen=True)
class Weibull:
    """Revoked mostly early (shape < 1) or mostly late (shape > 1). UsageError for a 0."""

    scale_s: float
    """The age by which 63 % are gone."""
    shape: float

    def __post_init__(self) -> None:
        _time("the scale of a Weibull lifetime", self.scale_s)
        if not _SHAPES[0] <= self.shape <= _SHAPES[1]:
            raise UsageError(
                f"the shape of a Weibull lifetime is {self.shape:g}, expected {_SHAPES[0]:g} to "
                f"{_SHAPES[1]:g}: below that half of the nodes are gone in an instant and the "
                "others live for ever"
            )

    def sample(self, rng: np.random.Generator, size: int) -> NDArray[np.float64]:
        """Lifetimes in seconds."""
        return self.scale_s * (-np.log(_uniform(rng, size))) ** (1.0 / self.shape)

    def cdf(self, t: ArrayLike) -> NDArray[np.float64]:
        """1 - exp(-(t / scale)^shape)."""
        with np.errstate(over="ignore"):
            return -np.expm1(-((_age(t) / self.scale_s) ** self.shape))

    @property
    def text(self) -> str:
        """What it is, for people."""
        return f"Weibull, scale {time_text(self.scale_s)}, shape {self.shape:g}"

    @property
    def yaml(self) -> str:
        """What `from_field` reads back."""
        return f'"weibull:{_seconds(self.scale_s)},{self.shape!r}"'


@dataclass(frozen=True)
class Bathtub:
    """Constrained preemption: many go early, few in the middle, the rest shortly before a limit.

    Kadupitige, Jadhao and Sharma (HPDC 2020) fit GCE's preemptible VMs, which live 24 h at most, by
    F(t) = A (1 - exp(-t/tau1) + exp((t-b)/tau2)). That is not 0 at 0, nor 1 at the limit for any A;
    here F is shifted and A chosen so that it is both: F(t) = (g(t) - g(0)) / (g(limit) - g(0)) with
    g(t) = 1 - exp(-t/tau1) + exp((t-b)/tau2). With b = limit about half go early; a smaller b sends
    more of them to the limit.

    So normalised, F is a mixture: early ones, exponential from 0 and cut off at the limit, and late
    ones, the same counted backwards from the limit. UsageError for a time of 0.
    """

    limit_s: float
    tau1_s: float
    """Of the early ones."""
    tau2_s: float
    """Of the late ones."""
    b_s: float

    def __post_init__(self) -> None:
        for name in ("limit", "tau1", "tau2", "b"):
            _time(f"{name} of a bathtub lifetime", getattr(self, f"{name}_s"))

    @property
    def _early(self) -> float:
        """The share of those that go early."""
        early = -math.expm1(-self.limit_s / self.tau1_s)
        # Beyond e^700 nobody is early, and a double has no more room.
        rise = math.exp(min((self.limit_s - self.b_s) / self.tau2_s, 700.0))
        late = -rise * math.expm1(-self.limit_s / self.tau2_s)
        return early / (early + late)

    def sample(self, rng: np.random.Generator, size: int) -> NDArray[np.float64]:
        """Lifetimes in seconds, none above the limit."""
        u, share = _uniform(rng, size), self._early
        early = u <= share
        # The number that chose the part, made uniform again; v = 0 is a late one at the limit.
        v = np.empty(size)
        v[early] = u[early] / share
        v[~early] = (1.0 - u[~early]) / (1.0 - share)
        tau = np.where(early, self.tau1_s, self.tau2_s)
        with np.errstate(divide="ignore"):  # the last of an exponential is at infinity: cut off
            life = -tau * np.log1p(v * np.expm1(-self.limit_s / tau))
        life = np.minimum(life, self.limit_s)
        return np.asarray(np.where(early, life, self.limit_s - life))

    def cdf(self, t: ArrayLike) -> NDArray[np.float64]:
        """F as above; 1 from the limit on."""
        age = np.minimum(_age(t), self.limit_s)
        first = np.expm1(-age / self.tau1_s) / np.expm1(-self.limit_s / self.tau1_s)
        left = self.limit_s - age
        last = 1.0 - np.expm1(-left / self.tau2_s) / np.expm1(-self.limit_s / self.tau2_s)
        return np.asarray(np.clip(self._early * first + (1.0 - self._early) * last, 0.0, 1.0))

    @property
    def text(self) -> str:
        """What it is, for people."""
        return (
            f"bathtub, {100 * self._early:.0f} % early (tau {time_text(self.tau1_s)}), the rest"
            f" before {time_text(self.limit_s)} (tau {time_text(self.tau2_s)})"
        )

    @property
    def yaml(self) -> str:
        """What `from_field` reads back."""
        times = map(_seconds, (self.limit_s, self.tau1_s, self.tau2_s, self.b_s))
        return f'"bathtub:{",".join(times)}"'


class Empirical:
    """What was measured: points (age in seconds, share revoked by then), straight lines between.

    It begins at (0, 0). Two points of one age are a jump. If the last share is below 1, the rest is
    never revoked. UsageError unless ages and shares ascend, ages are finite and not negative,
    shares are within 0 and 1, and one is above 0.
    """

    def __init__(self, points: Sequence[tuple[float, float]]) -> None:
        before = (0.0, 0.0)
        for point in points:
            _check(before, point)
            before = point
        if not before[1] > 0:
            raise UsageError("nothing was ever revoked in these points; write never instead")
        self._ages, self._shares = np.array([(0.0, 0.0), *points], dtype=np.float64).T

    @classmethod
    def of_sample(
        cls, lifetimes_s: Sequence[float], revoked: Sequence[bool] | None = None
    ) -> Empirical:
        """Jumps at measured lifetimes, as Kaplan and Meier estimate them.

        ``revoked`` says of each whether it ended in a revocation (True, and so without the list)
        or was given back alive: then it says only that its node lived at least so long. If the
        oldest was given back alive, what is beyond is not known, and counts as never. UsageError
        unless all lifetimes are finite and above 0, and one of them ended in a revocation.
        """
        lives = np.asarray(lifetimes_s, dtype=np.float64)
        ended = np.ones(len(lives), bool) if revoked is None else np.asarray(revoked, bool)
        if not ended.any():
            raise UsageError("no node of the sample was revoked; write never instead")
        if not (np.isfinite(lives).all() and lives.min() > 0):
            raise UsageError(
                "a lifetime of the sample is not above 0 and finite; correct or drop it"
            )
        ages, gone = np.unique(lives[ended], return_counts=True)
        at_risk = len(lives) - np.searchsorted(np.sort(lives), ages, side="left")
        after = 1.0 - np.cumprod(1.0 - gone / at_risk)
        before = np.concatenate([[0.0], after[:-1]])
        both = np.stack([before, after], axis=1).ravel()
        return cls(list(zip(np.repeat(ages, 2).tolist(), both.tolist(), strict=True)))

    def sample(self, rng: np.random.Generator, size: int) -> NDArray[np.float64]:
        """Lifetimes in seconds; inf for those beyond the last point."""
        return self._inverse(_uniform(rng, size))

    def _inverse(self, share: NDArray[np.float64]) -> NDArray[np.float64]:
        """The first age by which the share is revoked."""
        high = np.searchsorted(self._shares, share, side="left")
        there = high < len(self._shares)
        high = np.minimum(high, len(self._shares) - 1)
        low = high - 1
        step = self._shares[high] - self._shares[low]
        part = np.divide(share - self._shares[low], step, out=np.zeros_like(share), where=there)
        return np.where(there, self._between(self._ages, low, high, part), np.inf)

    def cdf(self, t: ArrayLike) -> NDArray[np.float64]:
        """The share revoked by then, jumps at that very age included."""
        age = np.asarray(t, dtype=np.float64)
        high = np.searchsorted(self._ages, age, side="right")
        within = (high > 0) & (high < len(self._ages))
        low = np.maximum(high - 1, 0)
        high = np.minimum(high, len(self._ages) - 1)
        step = self._ages[high] - self._ages[low]
        part = np.divide(age - self._ages[low], step, out=np.zeros_like(age), where=within)
        return np.where(within, self._between(self._shares, low, high, part), self._shares[low])

    @staticmethod
    def _between(
        values: NDArray[np.float64],
        low: NDArray[np.intp],
        high: NDArray[np.intp],
        part: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        return np.asarray(values[low] + part * (values[high] - values[low]))

    @property
    def text(self) -> str:
        """What it is, for people."""
        last = float(self._shares[-1])
        shares = [share for share in (0.1, 0.5, 0.9) if share <= last] or [last]
        ages = self._inverse(np.array(shares)).tolist()
        parts = [
            f"{100 * share:.3g} % gone by {time_text(age)}"
            for share, age in zip(shares, ages, strict=True)
        ]
        rest = f", {100 * (1 - last):.3g} % never" if last < 1 else ""
        return f"measured, {', '.join(parts)}{rest}"

    @property
    def yaml(self) -> str:
        """What `from_field` reads back."""
        points = zip(self._ages[1:].tolist(), self._shares[1:].tolist(), strict=True)
        listed = ", ".join(f"[{_seconds(age)}, {share!r}]" for age, share in points)
        return f"{{empirical: [{listed}]}}"


def _seconds(seconds: float) -> str:
    """As `duration` reads it back, to the last bit; it knows no exponents."""
    return f"{np.format_float_positional(seconds, trim='-')}s"


def _check(before: tuple[float, float], point: tuple[float, float]) -> None:
    """Complain about a point that cannot come after ``before``."""
    age, share = point
    if not (age >= 0 and math.isfinite(age)):
        raise UsageError(f"an age is {age:g} s, expected a finite one of at least 0 s")
    if not 0 <= share <= 1:
        raise UsageError(f"a share is {share:g}, expected a part of all, between 0 and 1")
    if age == 0 and share > 0:
        raise UsageError(f"a share of {share:g} is revoked at the age 0 s, expected an age above 0")
    if age < before[0]:
        raise UsageError(
            f"an age of {age:g} s comes after one of {before[0]:g} s, expected them to ascend"
        )
    if share < before[1]:
        raise UsageError(
            f"a share of {share:g} comes after one of {before[1]:g}; whoever is revoked stays so"
        )


def parse(text: str, what: str, folder: Path = Path()) -> Lifetime:
    """The lifetime that a text describes, as above; ``what`` is what the text is, for complaints.

    A FILE is sought from ``folder``. UsageError for any other text, and for impossible numbers.
    """
    kind, colon, rest = text.strip().partition(":")
    parts = rest.split(",")
    try:
        if kind == "never" and not colon:
            return Never()
        if kind == "exponential" and len(parts) == 1:
            return Exponential(duration(rest, "the mean"))
        if kind == "weibull" and len(parts) == 2:
            return Weibull(duration(parts[0], "the scale"), _number(parts[1], "the shape"))
        if kind == "bathtub" and len(parts) in (3, 4):
            names = ("the limit", "tau1", "tau2", "b")
            times = [duration(part, name) for part, name in zip(parts, names, strict=False)]
            limit, tau1, tau2, b = [*times, times[0]][:4]
            return Bathtub(limit, tau1, tau2, b)
        if kind == "sample" and rest.strip():
            return measured(folder / rest.strip())
    except UsageError as error:
        raise UsageError(f"{what} is {text!r}: {error}") from error
    raise UsageError(
        f"{what} is {text!r}, expected never, exponential:10h, weibull:10h,0.8,"
        " bathtub:24h,1h,48min or sample:FILE"
    )


def _number(text: str, what: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{what} is {text!r}, expected a number") from None


def from_field(field: Field, folder: Path = Path()) -> Lifetime:
    """The lifetime of a file's field: a text for `parse`, or a mapping with ``empirical``.

    The files that it names are sought from ``folder``. UsageError, with the line.
    """
    try:
        text = field.text()
    except UsageError:
        return _from_points(field)
    try:
        return parse(text, field.name, folder)
    except UsageError as error:
        field.wrong(str(error))


def _from_points(field: Field) -> Empirical:
    field.only("empirical")
    listed = field.need("empirical")
    points: list[tuple[float, float]] = []
    for pair in listed.elements():
        values = pair.elements()
        if len(values) != 2:
            pair.wrong(
                f"{pair.name} has {len(values)} values, expected an age and a share: [2h, 0.2]"
            )
        point = values[0].seconds(), values[1].number(least=0, most=1)
        try:
            _check(points[-1] if points else (0.0, 0.0), point)
        except UsageError as error:
            pair.wrong(f"{pair.name}: {error}")
        points.append(point)
    try:
        return Empirical(points)
    except UsageError as error:
        listed.wrong(f"{listed.name}: {error}")


def measured(path: Path) -> Empirical:
    """The lifetimes of a CSV, by `Empirical.of_sample`.

    It has a column ``lifetime`` with units or ``lifetime_s`` in seconds, and maybe ``revoked``: 1
    if that life ended in a revocation, 0 if the node was given back alive; without it all were
    revoked. Local, blocking. UsageError with the line for anything else.
    """
    lifetimes: list[float] = []
    revoked: list[bool] = []
    rows = load(path).elements()
    for row in rows:
        row.only("lifetime", "lifetime_s", "revoked")
        plain = row.get("lifetime_s")
        if plain is not None and row.get("lifetime") is not None:
            row.wrong("both lifetime and lifetime_s are there, expected one of them")
        life = (
            row.need("lifetime").seconds(above=0) if plain is None else plain.number("s", above=0)
        )
        lifetimes.append(life)
        ended = row.get("revoked")
        revoked.append(ended is None or ended.text("0", "1") == "1")
    if not rows:
        raise UsageError(f"{path}: there is no lifetime in it; is it the right file?")
    try:
        return Empirical.of_sample(lifetimes, revoked)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
