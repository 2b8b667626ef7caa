"""Strategies: how workers synchronise, as chains of operators."""

from spotmpi.strategies.names import NAMES, named
from spotmpi.strategies.shipped import ADPSGD, EASGD, SMA, SSGD, DiLoCo, LocalSGD, Lookahead
from spotmpi.strategies.strategy import Strategy, complete

__all__ = [
    "ADPSGD",
    "EASGD",
    "NAMES",
    "SMA",
    "SSGD",
    "DiLoCo",
    "LocalSGD",
    "Lookahead",
    "Strategy",
    "complete",
    "named",
]
