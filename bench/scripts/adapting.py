"""Steps that take as long on every machine, with a strategy or a policy; run until it is ended.

Run by ``spotmpi run`` (`adaptive` does): ``python adapting.py WAY PARAMS MS``. WAY is a strategy as
``--strategy`` has them, ``below`` for the policy `ThroughputBelow`, or ``best`` for `Best`.
"""

from __future__ import annotations

import sys
import time

import numpy as np

import spotmpi
from spotmpi.optimizers import SGD
from spotmpi.policies import Best, Fixed, Policy, ThroughputBelow
from spotmpi.strategies import ADPSGD, SSGD, DiLoCo, named

_PAIRS, _OUTER = ADPSGD(control=16), DiLoCo(h=16)


def policy_of(way: str) -> Policy:
    """What decides."""
    if way == "below":
        return ThroughputBelow(0.4, then=_PAIRS, settle=1.0)
    if way == "best":
        return Best([SSGD(), _PAIRS, _OUTER], settle=1.0)
    return Fixed(named(way))


def main(arguments: list[str]) -> None:
    """Train."""
    way, params, ms = arguments[0], int(arguments[1]), float(arguments[2])
    gradient = [np.full(params, 1e-3, np.float32)]
    start = [np.zeros(params, np.float32)]
    with spotmpi.Trainer(start, optimizer=SGD(lr=1e-3), policy=policy_of(way)) as trainer:
        for _ in trainer.batches(1 << 20, batch_size=8, passes=1000):
            time.sleep(ms / 1e3)
            trainer.step(gradient)


if __name__ == "__main__":
    main(sys.argv[1:])
