"""Operators: each is one stage of synchronisation, and ``>>`` composes them into strategies."""

from spotmpi.arrays.registry import Scope, State
from spotmpi.operators.averages import (
    Broadcast,
    ElasticAverage,
    ModelAverage,
    OuterUpdate,
    PairAverage,
    Quorum,
    SlowWeights,
)
from spotmpi.operators.commons import MeanOfSteps, SharedSteps
from spotmpi.operators.fitting import misfit, unsaid
from spotmpi.operators.pushes import PushSum
from spotmpi.operators.shards import PushedSum, PushPull
from spotmpi.operators.stages import (
    RESTS,
    Apply,
    Chain,
    Clip,
    Every,
    GradientAverage,
    GradientSum,
    Narrow,
    Operator,
)
from spotmpi.operators.step import Bring, Contribute, Run, Step, StepPosition, Weighted, fragment

__all__ = [
    "RESTS",
    "Apply",
    "Bring",
    "Broadcast",
    "Chain",
    "Clip",
    "Contribute",
    "ElasticAverage",
    "Every",
    "GradientAverage",
    "GradientSum",
    "MeanOfSteps",
    "ModelAverage",
    "StepPosition",
    "Narrow",
    "Operator",
    "OuterUpdate",
    "PairAverage",
    "PushSum",
    "PushPull",
    "PushedSum",
    "Quorum",
    "Run",
    "Scope",
    "SharedSteps",
    "SlowWeights",
    "State",
    "Step",
    "Weighted",
    "fragment",
    "misfit",
    "unsaid",
]
