"""The truth of a run, from its trace alone: the public name of `spotmpi.trace.replay`."""

from spotmpi.trace.replay import *  # noqa: F403
from spotmpi.trace.replay import __all__ as __all__
