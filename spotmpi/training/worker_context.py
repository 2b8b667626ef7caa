"""What connects a worker with its job: the fabric, the launcher, files and settings."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from spotmpi.fabric import Fabric
from spotmpi.launcher_channel import LauncherChannel
from spotmpi.settings import Settings
from spotmpi.trace.records import Trace
from spotmpi.training.fault_injection import Faults
from spotmpi.training.history import History
from spotmpi.training.keeping.checkpoint_writer import Save, save

__all__ = ["WorkerContext"]


@dataclass(frozen=True)
class WorkerContext:
    """The context of one worker in one training."""

    fabric: Fabric
    channel: LauncherChannel
    settings: Settings
    trace: Trace
    version: str
    """Version of spotmpi, for the trace."""
    history: History
    faults: Faults
    """Ends this worker on purpose, if the settings say so."""
    save: Save = save
    """Function that writes a checkpoint."""
    wall: Callable[[], float] | None = time.time
    """Clock in seconds since 1970; None in a simulation, which has no such time."""
    cpu: Callable[[], tuple[float, float] | None] | None = None
    """Function that returns this worker's CPU times, as `timings.CpuTime`; None without a trace."""
    rest: Callable[[float], None] = time.sleep
    """Function that waits for the given number of seconds."""
