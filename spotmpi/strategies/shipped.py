"""The strategies that come with spotmpi. In the equations w are parameters, g the mean gradient of
a worker's batch, n the samples in it, and i counts workers."""

from __future__ import annotations

from spotmpi.errors import UsageError
from spotmpi.operators import (
    Apply,
    ElasticAverage,
    Every,
    GradientAverage,
    ModelAverage,
    OuterUpdate,
    PairAverage,
    SlowWeights,
)
from spotmpi.strategies.strategy import Strategy

__all__ = ["ADPSGD", "EASGD", "SMA", "SSGD", "DiLoCo", "LocalSGD", "Lookahead"]


class SSGD(Strategy):
    """Synchronous SGD: every step applies the average of all workers' gradients::

    w <- w - rate * sum(n_i g_i) / sum(n_i)
    """

    def __init__(self) -> None:
        super().__init__(GradientAverage() >> Apply())


class Lookahead(Strategy):
    """Synchronous SGD, which every ``every`` steps goes back to slow weights that follow it
    (Zhang, Lucas, Hinton and Ba, "Lookahead optimizer: k steps forward, 1 step back", 2019)::

        s <- s + mix * (w - s)
        w <- s
    """

    def __init__(self, every: int = 6, mix: float = 0.5) -> None:
        slow = Every(every, SlowWeights(mix))
        super().__init__(GradientAverage() >> Apply() >> slow, every=every, mix=mix)


class LocalSGD(Strategy):
    """Workers take ``h`` steps each for itself, and go on with the mean of their models (Stich,
    "Local SGD converges fast and communicates little", 2019)::

        w_i <- w_i - rate * g_i                    in each step
        w_i <- sum(n_i w_i) / sum(n_i)             in every h-th
    """

    def __init__(self, h: int = 8) -> None:
        super().__init__(Apply() >> Every(h, ModelAverage()), h=h)


class SMA(Strategy):
    """Synchronous model averaging: workers keep models of their own, and in each step a central
    model z is corrected by all of them, as they are by it (Koliousis et al., "CROSSBOW", 2019,
    algorithm 1; p workers take part)::

        w_i <- w_i - rate * g_i - pull / p * (w_i - z)
        z   <- z + pull * (mean of w_i - z) + momentum * (last change of z)
    """

    def __init__(self, pull: float = 0.9, momentum: float = 0.9) -> None:
        average = ElasticAverage(pull, momentum)
        super().__init__(Apply() >> average, pull=pull, momentum=momentum)


class EASGD(Strategy):
    """Elastic averaging, in every ``every`` steps: workers explore around a centre z that follows
    them (Zhang, Choromanska and LeCun, "Deep learning with elastic averaging SGD", 2015; ``pull``
    is its beta, and p workers take part)::

        w_i <- w_i - pull / p * (w_i - z)
        z   <- z + pull * (mean of w_i - z)
    """

    def __init__(self, every: int = 8, pull: float = 0.9) -> None:
        super().__init__(Apply() >> Every(every, ElasticAverage(pull)), every=every, pull=pull)


class ADPSGD(Strategy):
    """Asynchronous decentralised SGD: in each step a worker averages its model with the latest one
    of another worker, and waits for nobody (Lian, Zhang, Zhang and Liu, "Asynchronous decentralized
    parallel stochastic gradient descent", 2018)::

        w_i <- w_i - rate * g_i
        w_i <- (w_i + w_j) / 2                     j: another worker, at random
        w_i <- sum(n_i w_i) / sum(n_i)             in every ``control``-th step

    In the last line all meet: to agree on who comes and goes, on a model to keep, and on the
    samples to come. Until then each worker takes as many steps as it can in the time in which the
    others take theirs, ``control`` on average.
    """

    def __init__(self, control: int = 64) -> None:
        super().__init__(
            Apply() >> PairAverage() >> Every(control, ModelAverage()), control=control
        )


class DiLoCo(Strategy):
    """Workers take ``h`` steps each for itself; what they have come to is a gradient for an outer
    optimizer with Nesterov's momentum (Douillard et al., "DiLoCo", 2023)::

        d   <- a - sum(n_i w_i) / sum(n_i)         a: the model after the last round
        v   <- momentum * v + d
        a   <- a - outer * (d + momentum * v)
        w_i <- a

    With ``fragments`` each round does so with one part of the model, and there are so many rounds
    in ``h`` steps; with ``delay`` d travels during so many steps, and of what a worker has come to
    meanwhile the share ``mix`` remains: w_i <- mix * w_i + (1 - mix) * a (Douillard et al.,
    "Streaming DiLoCo", 2025). ``Narrow("int8") >> DiLoCo()`` sends d in a quarter of its bytes.
    """

    def __init__(
        self,
        h: int = 64,
        outer: float = 0.7,
        momentum: float = 0.9,
        fragments: int = 1,
        delay: int = 0,
        mix: float = 0.0,
    ) -> None:
        every, rest = divmod(h, fragments) if fragments else (0, 0)
        if rest or not 0 <= delay < max(every, 1):
            raise UsageError(
                f"DiLoCo(h={h}, fragments={fragments}, delay={delay}): h must be a multiple of "
                "fragments, and delay less than h / fragments"
            )
        outside = OuterUpdate(outer, momentum, fragments, delay, mix)
        options = {"h": h, "outer": outer, "momentum": momentum}
        if fragments > 1 or delay:
            options |= {"fragments": fragments, "delay": delay, "mix": mix}
        super().__init__(Apply() >> Every(every, outside), **options)
