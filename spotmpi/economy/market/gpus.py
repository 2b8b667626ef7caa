"""What GPUs clouds rent, how much memory these have, and how fast they train beside a named one.

The shipped file says where each figure is from; what nobody has measured is not in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

from spotmpi.economy.reading import Field, load

__all__ = ["Gpu", "Gpus", "read", "shipped"]


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU."""

    name: str
    memory_gb: float
    speed: Mapping[str, float]
    """Of each training, in times that of the named one; empty: nobody has measured."""
    measured: str | None
    """What exactly was measured."""


@dataclass(frozen=True)
class Gpus:
    """A list of them."""

    as_of: str
    source: str
    relative_to: str
    gpus: Mapping[str, Gpu]
    instances: Mapping[str, tuple[str, int]]
    """Of each instance type the GPU, and how many."""

    def described(self, instance: str) -> str | None:
        """What an instance type has, in words; None: it is not in the list."""
        if instance not in self.instances:
            return None
        name, count = self.instances[instance]
        gpu = self.gpus[name]
        said = f"{count} x {name}, {gpu.memory_gb:g} GB each"
        if not gpu.speed:
            return f"{said}; its speed was measured by nobody that we know of"
        speeds = ", ".join(f"{training} {speed:g}" for training, speed in gpu.speed.items())
        return f"{said}; in times a {self.relative_to}: {speeds} ({gpu.measured})"


def shipped() -> Gpus:
    """The list that comes with spotmpi."""
    with as_file(files("spotmpi.economy") / "data" / "gpus-2026.yaml") as path:
        return read(path)


def read(path: Path) -> Gpus:
    """Read a list. Local, blocking; UsageError with the line of a mistake."""
    root = load(path)
    root.only("as_of", "source", "relative_to", "trainings", "gpus", "instances")
    trainings = [one.text() for one in root.need("trainings").elements()]
    gpus = {name: _gpu(name, one, trainings) for name, one in root.need("gpus").items()}
    instances = {}
    for name, one in root.need("instances").items():
        one.only("gpu", "count")
        instances[name] = one.need("gpu").text(*gpus), one.need("count").whole(least=1)
    return Gpus(
        root.need("as_of").text(),
        root.need("source").text(),
        root.need("relative_to").text(*gpus),
        gpus,
        instances,
    )


def _gpu(name: str, field: Field, trainings: list[str]) -> Gpu:
    field.only("memory_gb", "measured", "speed")
    told, measured = field.get("speed"), field.get("measured")
    if told is not None:
        told.only(*trainings)
    speed = {} if told is None else {one: v.number(above=0) for one, v in told.items()}
    return Gpu(
        name,
        field.need("memory_gb").number("GB", above=0),
        speed,
        None if measured is None else measured.text(),
    )
