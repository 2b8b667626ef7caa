"""Strategies: how workers synchronise, as operators before a round, in it and after it."""

from spotmpi.strategies.names import NAMES, named
from spotmpi.strategies.shipped import (
    ADPSGD,
    EASGD,
    SMA,
    SSGD,
    DiLoCo,
    Gossip,
    Hogwild,
    LocalSGD,
    Lookahead,
    ParameterServer,
)
from spotmpi.strategies.strategy import RESTS, Strategy

__all__ = [
    "ADPSGD",
    "EASGD",
    "NAMES",
    "RESTS",
    "SMA",
    "SSGD",
    "DiLoCo",
    "Gossip",
    "Hogwild",
    "LocalSGD",
    "Lookahead",
    "ParameterServer",
    "Strategy",
    "named",
]
