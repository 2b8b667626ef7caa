"""What connects a worker with its surroundings: others, its launcher, its files, its settings."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from spotmpi.fabric import Fabric
from spotmpi.launcher_channel import LauncherChannel
from spotmpi.settings import Settings
from spotmpi.trace.records import Trace
from spotmpi.training.history import History
from spotmpi.training.keeping.checkpoints import Save, save

__all__ = ["WorkerContext"]


@dataclass(frozen=True)
class WorkerContext:
    """Of one worker, in one training."""

    fabric: Fabric
    channel: LauncherChannel
    settings: Settings
    trace: Trace
    version: str
    """Of spotmpi; for the trace."""
    history: History
    save: Save = save
    """What puts a checkpoint where it is kept."""
    wall: Callable[[], float] | None = time.time
    """Seconds since 1970; None where the clock is none of this world."""
    cpu: Callable[[], tuple[float, float] | None] | None = None
    """What cores this worker has had, as `timings.CpuTime` has it."""
    rest: Callable[[float], None] = time.sleep
    """Waits for so many seconds."""
