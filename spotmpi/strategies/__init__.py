"""Strategies: how workers synchronise, as chains of operators."""

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
from spotmpi.strategies.strategy import Strategy, complete

__all__ = [
    "ADPSGD",
    "EASGD",
    "NAMES",
    "SMA",
    "SSGD",
    "DiLoCo",
    "Gossip",
    "Hogwild",
    "LocalSGD",
    "Lookahead",
    "ParameterServer",
    "Strategy",
    "complete",
    "named",
]
