"""Local arithmetic on flat parameters: what a round's gradients do to them. No communication."""

from spotmpi.optimizers.adaptive import LAMB, Adam, AdamW
from spotmpi.optimizers.descent import SGD, Momentum
from spotmpi.optimizers.optimizer import Optimizer
from spotmpi.optimizers.schedules import Cosine, Schedule, StepDecay, Warmup

__all__ = [
    "LAMB",
    "SGD",
    "Adam",
    "AdamW",
    "Cosine",
    "Momentum",
    "Optimizer",
    "Schedule",
    "StepDecay",
    "Warmup",
]
