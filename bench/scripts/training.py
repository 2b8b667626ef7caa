"""The training whose recoveries are measured: all of spotmpi, and a gradient that costs nothing.

A script for ``spotmpi run`` (`recovery` starts it): ``training.py FOLDER PARAMS STEPS SCHEDULE
[LIBRARY]``. Arguments are as in `floor`; LIBRARY says whose the arrays are, ``numpy`` (usual) or
``cupy``. Victims die by `floor.Killer`, in the place of spotmpi's own faults: at moments that
the bench chooses, the same on both sides.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import spotmpi
from spotmpi.bench.scripts.floor import Killer
from spotmpi.optimizers import Momentum
from spotmpi.strategies import SSGD
from spotmpi.training.fault_injection import Faults


def main(folder: Path, params: int, steps: int, schedule: str, library: str = "numpy") -> None:
    """One worker of the job, to its end."""
    zeros = import_module(library).zeros
    weights, gradient = [zeros(params, "float32")], [zeros(params, "float32")]
    gradient[0].fill(1e-3)
    with spotmpi.Trainer(weights, optimizer=Momentum(lr=0.05), strategy=SSGD()) as trainer:
        killer: Faults = Killer(schedule, trainer.worker, folder)
        context = cast(Any, trainer)._participant.context
        object.__setattr__(context, "faults", killer)  # it is frozen
        while trainer.steps < steps:
            trainer.step(gradient, loss=0.0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
