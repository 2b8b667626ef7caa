"""Policies: they decide during the training which strategy to follow, from what is measured."""

from spotmpi.policies.metrics import Metrics, Tried
from spotmpi.policies.names import NAMES, named
from spotmpi.policies.policy import Policy
from spotmpi.policies.shipped import Best, Fixed, Schedule, StragglerAware, ThroughputBelow

__all__ = [
    "NAMES",
    "Best",
    "Fixed",
    "Metrics",
    "Policy",
    "Schedule",
    "StragglerAware",
    "ThroughputBelow",
    "Tried",
    "named",
]
