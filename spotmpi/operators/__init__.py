"""Operators: what strategies are made of, and ``>>`` composes them."""

from spotmpi.arrays.registry import Scope, State
from spotmpi.operators.commons import MeanOfSteps, SharedSteps
from spotmpi.operators.exchange import PairAverage, PushSum
from spotmpi.operators.gradients import Apply, Clip, GradientAverage, GradientSum
from spotmpi.operators.models import (
    Broadcast,
    ElasticAverage,
    ModelAverage,
    OuterUpdate,
    SlowWeights,
)
from spotmpi.operators.operator import (
    Asking,
    Chain,
    Every,
    Meeting,
    Narrow,
    Operator,
    Quorum,
    Stage,
)
from spotmpi.operators.shards import PushedSum, PushPull
from spotmpi.operators.step import Bring, Step, StepPosition, Weighted, fragment

__all__ = [
    "Apply",
    "Asking",
    "Bring",
    "Broadcast",
    "Chain",
    "Clip",
    "ElasticAverage",
    "Every",
    "GradientAverage",
    "GradientSum",
    "MeanOfSteps",
    "Meeting",
    "ModelAverage",
    "Narrow",
    "Operator",
    "OuterUpdate",
    "PairAverage",
    "PushPull",
    "PushSum",
    "PushedSum",
    "Quorum",
    "Scope",
    "SharedSteps",
    "SlowWeights",
    "Stage",
    "State",
    "Step",
    "StepPosition",
    "Weighted",
    "fragment",
]
