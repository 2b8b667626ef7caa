"""For tests of your own: the services that tell of revocations, as they are in the clouds, and
workers that are slower than others.

Each class is a context manager that serves on a free port of 127.0.0.1::

    with spotmpi.testing.EC2() as cloud:
        job = subprocess.Popen(
            ["spotmpi", "run", *cloud.options, "-n", "4", "train.py"],
        )
        ...
        cloud.preempt(in_seconds=120)

and behaves like the real service before and after the notice, wrong questions included.
``cloud.misbehave("hanging")`` makes it fail in one of the ways of `FAULTS`, until
``cloud.behave()``. At the end of the block no thread and no socket of it is left.

``for batch in slowed(trainer.batches(...), 5 if trainer.worker == 1 else 1)`` makes worker 1 five
times slower than it is.
"""

from __future__ import annotations

from spotmpi.testing.azure import Azure
from spotmpi.testing.ec2 import EC2
from spotmpi.testing.gce import GCE
from spotmpi.testing.service import FAULTS, Request, Service
from spotmpi.testing.slow import slowed

__all__ = ["EC2", "FAULTS", "GCE", "Azure", "Request", "Service", "slowed"]
