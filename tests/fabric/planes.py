"""The data planes that MPI jobs may have, by the names that tests call them by."""

from __future__ import annotations

from collections.abc import Callable

from spotmpi.fabric.node import Node
from spotmpi.fabric.plane import Apart, Plain, Plane, Ways

PLANES: dict[str, Callable[[Ways], Plane]] = {"Node": Node, "Plain": Plain, "Apart": Apart}
