"""The strategies that come with spotmpi.

In the equations w are parameters, g is the mean gradient of a worker's batch, n is the number of
samples in the batch, and i counts workers.
"""

from __future__ import annotations

from spotmpi.errors import UsageError
from spotmpi.operators import (
    Apply,
    ElasticAverage,
    Every,
    GradientAverage,
    MeanOfSteps,
    ModelAverage,
    Operator,
    OuterUpdate,
    PairAverage,
    PushedSum,
    PushPull,
    PushSum,
    Quorum,
    SharedSteps,
    SlowWeights,
)
from spotmpi.optimizers.numbers import whole, within
from spotmpi.strategies.strategy import Strategy

__all__ = [
    "ADPSGD",
    "EASGD",
    "SMA",
    "SSGD",
    "DiLoCo",
    "Gossip",
    "Hogwild",
    "LocalSGD",
    "Lookahead",
    "ParameterServer",
]


class _Named(Strategy):
    """A strategy that ``--strategy`` knows by the name of its class, and by the ``options`` of its
    chain."""

    def __init__(self, chain: Operator, **options: float) -> None:
        super().__init__(chain)
        # A derived class makes the same chain of these options, so it is the same strategy.
        shipped = next(one for one in type(self).__mro__ if _Named in one.__bases__)
        said = ",".join(f"{option}={value}" for option, value in options.items())
        self.name = shipped.__name__.lower() + (f":{said}" if said else "")


class SSGD(_Named):
    """Synchronous SGD: every step applies the average of all workers' gradients::

    w <- w - rate * sum(n_i g_i) / sum(n_i)
    """

    def __init__(self) -> None:
        super().__init__(GradientAverage() >> Apply())


class Lookahead(_Named):
    """Synchronous SGD with slow weights. They follow the parameters, which go back to them every
    ``every`` steps (Zhang, Lucas, Hinton and Ba, "Lookahead optimizer: k steps forward, 1 step
    back", 2019)::

        s <- s + mix * (w - s)
        w <- s
    """

    def __init__(self, every: int = 6, mix: float = 0.5) -> None:
        every = whole("every", every, 1)
        slow = Every(every, SlowWeights(mix))
        super().__init__(GradientAverage() >> Apply() >> slow, every=every, mix=mix)


class LocalSGD(_Named):
    """Each worker takes ``h`` steps for itself, then all go on with the mean of their models
    (Stich, "Local SGD converges fast and communicates little", 2019)::

        w_i <- w_i - rate * g_i                    in each step
        w_i <- sum(n_i w_i) / sum(n_i)             in every h-th
    """

    def __init__(self, h: int = 8) -> None:
        h = whole("h", h, 1)
        super().__init__(Apply() >> Every(h, ModelAverage()), h=h)


class SMA(_Named):
    """Synchronous model averaging. Workers keep their own models. In each step all workers correct
    a central model z, and z corrects them (Koliousis et al., "CROSSBOW", 2019, algorithm 1; p
    workers take part)::

        w_i <- w_i - rate * g_i - pull / p * (w_i - z)
        z   <- z + pull * (mean of w_i - z) + momentum * (last change of z)
    """

    def __init__(self, pull: float = 0.9, momentum: float = 0.9) -> None:
        average = ElasticAverage(pull, momentum)
        super().__init__(Apply() >> average, pull=pull, momentum=momentum)


class EASGD(_Named):
    """Elastic averaging, in every ``every`` steps: workers explore around a centre z that follows
    them (Zhang, Choromanska and LeCun, "Deep learning with elastic averaging SGD", 2015; ``pull``
    is its beta, and p workers take part)::

        w_i <- w_i - pull / p * (w_i - z)
        z   <- z + pull * (mean of w_i - z)
    """

    def __init__(self, every: int = 8, pull: float = 0.9) -> None:
        every = whole("every", every, 1)
        super().__init__(Apply() >> Every(every, ElasticAverage(pull)), every=every, pull=pull)


class ADPSGD(_Named):
    """Asynchronous decentralised SGD. In each step a worker averages its model with the latest
    model of another worker, if no third one has, and waits for none (Lian, Zhang, Zhang and Liu,
    "Asynchronous decentralized parallel stochastic gradient descent", 2018)::

        w_i <- w_i - rate * g_i
        w_i <- (w_i + w_j) / 2                     j: another worker, at random
        w_i <- sum(n_i w_i) / sum(n_i)             in every ``control``-th step

    The last line is a round of all workers. They agree on who joins and leaves, on a model to keep,
    and on the samples to come. Until then each worker takes as many steps as it can while the
    others take theirs: ``control`` on average.
    """

    def __init__(self, control: int = 64) -> None:
        control = whole("control", control, 1)
        super().__init__(
            Apply() >> PairAverage() >> Every(control, ModelAverage()), control=control
        )


class Gossip(_Named):
    """Stochastic gradient push. Each worker has a model with a weight p. In each step it gives half
    of its model, with half of its weight, to the next worker in a directed ring of all (Assran,
    Loizou, Ballas and Rabbat, "Stochastic gradient push for distributed deep learning", 2019; w is
    its z, and p w its x). The ring is drawn again for each round, and no worker waits::

        w_i <- w_i - rate * g_i
        w_i <- (p_i w_i + dx) / (p_i + dp),  p_i <- p_i + dp
        give p_i w_i / 2 and p_i / 2,        p_i <- p_i / 2        if p_i >= 1
        w_i <- sum(n_i w_i) / sum(n_i),      p_i <- 1              in every ``control``-th step

    dx and dp are what the worker before has given since this worker last looked: nothing, if that
    one is slow. If all workers keep step, p is 1 before each gift. A worker that has less gives
    nothing: if it took something with a small weight, what it has learnt itself would count for
    little. The paper's step of rate / p would be twice as long after a gift, so here the step uses
    the rate that you gave. The last line is a round, as in `ADPSGD`: each worker comes to it after
    as many steps as it can take, ``control`` on average.
    """

    def __init__(self, control: int = 64) -> None:
        control = whole("control", control, 1)
        super().__init__(Apply() >> PushSum() >> Every(control, ModelAverage()), control=control)


class DiLoCo(_Named):
    """Each worker takes ``h`` steps for itself. The mean change of their models is then the
    gradient of an outer optimizer with Nesterov's momentum (Douillard et al., "DiLoCo", 2023)::

        d   <- a - sum(n_i w_i) / sum(n_i)         a: the model after the last round
        v   <- momentum * v + d
        a   <- a - outer * (d + momentum * v)
        w_i <- a

    With ``fragments`` each round carries one part of the model, and there are ``fragments`` rounds
    in ``h`` steps. With ``delay`` d travels during this many steps. Of a worker's model at their
    end the share ``mix`` remains: w_i <- mix * w_i + (1 - mix) * a (Douillard et al., "Streaming
    DiLoCo", 2025). ``Narrow("int8") >> DiLoCo()`` sends d in a quarter of its bytes.

    With ``quorum`` a round waits for no worker that is late. Workers take as many steps as they
    can, ``h`` on average, as in `ADPSGD`. Once this share of the workers have taken their steps,
    and ``grace`` seconds have passed, all others bring what they have done so far. n_i are then the
    samples that worker i has used. The rest of the samples that it was dealt comes in the next
    round.
    """

    def __init__(
        self,
        h: int = 64,
        outer: float = 0.7,
        momentum: float = 0.9,
        fragments: int = 1,
        delay: int = 0,
        mix: float = 0.0,
        quorum: float = 0.0,
        grace: float = 0.5,
    ) -> None:
        h, fragments = whole("h", h, 1), whole("fragments", fragments, 1)
        delay = whole("delay", delay, 0)
        within("outer", outer, 0, 10, above=True)
        every, rest = divmod(h, fragments)
        if rest or delay >= every:
            raise UsageError(
                f"DiLoCo(h={h}, fragments={fragments}, delay={delay}): h must be a multiple of "
                "fragments, and delay less than h / fragments"
            )
        outside = OuterUpdate(outer, momentum, fragments, delay, mix)
        options = {"h": h, "outer": outer, "momentum": momentum}
        if fragments > 1 or delay or mix:
            options |= {"fragments": fragments, "delay": delay, "mix": mix}
        chain = Apply() >> Every(every, outside)
        if quorum:
            options |= {"quorum": quorum, "grace": grace}
            chain = Apply() >> Quorum(quorum, grace) >> Every(every, outside)
        super().__init__(chain, **options)


class ParameterServer(_Named):
    """Asynchronous SGD with a parameter server that the workers hold together. Each worker pushes
    its changes to the model, trains the sum of all pushes that have arrived, and waits for none
    (Dean et al., "Large scale distributed deep networks", 2012; on the cost of losing a server
    elsewhere: Li, Walls, Xu and Guo, "Speeding up deep learning with transient servers", 2019)::

        u_i <- u_i - rate / p * g_i(w_i)           in each step; u_i = 0 after each round
        w_i <- a + sum(u_j)                        of the latest u_j that have come, and its own
        a   <- a + sum(u_i),  w_i <- a             in every ``control``-th step

    The model is cut into ``shards``, of whole buckets. One worker holds a shard and makes its sum;
    another one mirrors the shard and makes the sum again. The last line is a round, as in `ADPSGD`.
    Each worker brings its own changes, so the result does not depend on which worker holds which
    shard, and a lost worker takes no changes of others along.

    Each of p workers moves the model by a p-th of what it would do alone. Together they move it as
    far as synchronous SGD does, but late, so the learning rate must be smaller.
    """

    def __init__(self, shards: int = 1, control: int = 64) -> None:
        shards, control = whole("shards", shards, 1), whole("control", control, 1)
        super().__init__(
            PushPull(shards) >> Every(control, PushedSum()), shards=shards, control=control
        )


class Hogwild(_Named):
    """Asynchronous SGD on one model that the workers of a host share. Each worker computes
    gradients on the model and adds its steps to it, at any time and without locks (Niu, Recht, Re
    and Wright, "Hogwild!: a lock-free approach to parallelizing stochastic gradient descent",
    2011)::

        y_i <- y_i - rate * g_i(w_i)               in each step
        w_i <- a + sum(y_j - a) / p                of the p workers of the host, as far as they are
        a   <- a + mean of all (y_i - a)           in every ``control``-th step, of all hosts
        y_i <- a,  w_i <- a

    The sum is in memory that the workers of a host share: their model is a + sum / p. Each of p
    workers moves it by a p-th of what it would do alone. Together they move it as far as
    synchronous SGD does. The paper's step is rate / p. Each worker has its own optimizer memory.

    The last two lines are a round, as in `ADPSGD`. Each worker brings y_i, which it kept to itself,
    so the round does not depend on what happened to the memory that all write to. The round brings
    the models of the hosts together, and those of workers that share no memory: these train y_i.
    """

    def __init__(self, control: int = 64) -> None:
        control = whole("control", control, 1)
        super().__init__(SharedSteps() >> Every(control, MeanOfSteps()), control=control)
