"""Profiles: files that say how a training behaves, in the terms of one of the models."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib.resources import as_file, files
from pathlib import Path

from spotmpi.economy import reading
from spotmpi.economy.models import Model, ring, server_queue, spotdnn
from spotmpi.economy.quantities import Cluster
from spotmpi.economy.reading import Field
from spotmpi.errors import UsageError

__all__ = ["find", "load", "shipped", "work"]

_MODELS: dict[str, Callable[[Field], Model]] = {
    "spotdnn": spotdnn.from_profile,
    "queue": server_queue.from_profile,
    "ring": ring.from_profile,
}
_SHIPPED = ("icac19", "spotdnn")


def load(path: Path) -> Model:
    """Read a profile. Local, blocking; UsageError with the line of a mistake."""
    field = reading.load(path)
    return _MODELS[field.need("model").text(*_MODELS)](field)


def shipped(name: str) -> Model:
    """A profile that comes with spotmpi. UsageError for another name."""
    if name not in _SHIPPED:
        raise UsageError(
            f"there is no profile {name!r}: name a file, or one that is shipped, "
            f"{' or '.join(_SHIPPED)}"
        )
    with as_file(files("spotmpi.economy") / "data" / f"{name}-profile.yaml") as path:
        return load(path)


def find(name: str) -> Model:
    """The profile of a file, or a shipped one where there is no such file."""
    return load(Path(name)) if Path(name).suffix or Path(name).exists() else shipped(name)


def work(
    model: Model, loss: float | None, iterations: float | None
) -> tuple[Callable[[Cluster], float], str]:
    """How many iterations a training takes on a cluster, and what it is in words.

    To a loss (one at least), for a number of iterations, or as long as the profile says. UsageError
    if that is not one answer, or if the loss cannot be reached.
    """
    if loss is not None and iterations is not None:
        raise UsageError("--loss and --iterations both say when training ends; leave one out")
    if iterations is not None and not (math.isfinite(iterations) and iterations > 0):
        raise UsageError(f"--iterations is {iterations:g}, expected more than 0")
    if loss is not None:
        if not math.isfinite(loss):
            raise UsageError(f"--loss is {loss:g}, expected a number")
        _reachable(model, loss)
        return (
            lambda cluster: max(1.0, model.iterations(cluster, loss)),
            f"to a loss of {loss:g}",
        )
    fixed = iterations if iterations is not None else model.length
    if fixed is None:
        raise UsageError(
            f"the profile of {model.name} does not say how long training is; say --loss or "
            "--iterations"
        )
    return (
        lambda cluster: fixed,
        f"{fixed:,.0f} iterations" if 1 <= fixed < 1e15 else f"{fixed:g} iterations",
    )


def _reachable(model: Model, loss: float) -> None:
    """UsageError if no type reaches the loss, as only some of them may, or all have it already."""
    needed, problem = [], None
    for name in model.types:
        try:
            needed.append(model.iterations({name: 1}, loss))
        except UsageError as error:
            problem = error
    if problem is not None and not needed:
        raise problem
    if not any(needed):
        raise UsageError(
            f"--loss is {loss:g}, which {model.name} has before its first iteration; ask for less"
        )
