"""Operators: one stage of synchronisation each, composed with ``>>`` into strategies."""

from spotmpi.operators.averages import (
    ElasticAverage,
    ModelAverage,
    OuterUpdate,
    PairAverage,
    SlowWeights,
)
from spotmpi.operators.stages import (
    RESTS,
    Apply,
    Bring,
    Chain,
    Clip,
    Contribute,
    Every,
    GradientAverage,
    Moment,
    Narrow,
    Operator,
    Run,
    Step,
    Weighted,
    fragment,
)

__all__ = [
    "RESTS",
    "Apply",
    "Bring",
    "Chain",
    "Clip",
    "Contribute",
    "ElasticAverage",
    "Every",
    "GradientAverage",
    "ModelAverage",
    "Moment",
    "Narrow",
    "Operator",
    "OuterUpdate",
    "PairAverage",
    "Run",
    "SlowWeights",
    "Step",
    "Weighted",
    "fragment",
]
