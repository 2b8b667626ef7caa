"""The measurements of Li et al. (ICAC 2019), and the queue fitted to them.

Two parameters are fitted; all else is the paper's prices and the times of single workers:

- ``update_s``, the service time of one update, from how much faster 8 V100 are than 4: K80s hardly
  load the server, so their times hardly depend on it (with them alone it would be 14 ms, and the
  mixed clusters would come out 13 and 16 % wrong). The paper's text only says that "training time
  quickly plateaus after using more than four servers"; other runs of this training took 0.88 to
  0.91 of the time, of which the middle is taken.
- ``lost_h``, worker hours that a revocation costs beyond the lost capacity, by least squares of the
  relative errors of Table IV's costs of clusters of 2 and 8. It is what a node takes to boot: it is
  billed from its creation, and the paper's times begin when it trains.

Revocations conserve work: T = f T0 + (1-f) T0 n/(n-k), if k of n workers go when a share f of the
work is done. So the workers are paid for n T0 hours in all, whenever it happens.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import as_file, files

from spotmpi.bench.papers.comparison import Row
from spotmpi.economy import reading
from spotmpi.economy.models.server_queue import Queue
from spotmpi.economy.quantities import HOUR, Cluster

__all__ = [
    "MIXED_FAST",
    "MIXED_SLOW",
    "REVOKED",
    "SIZES",
    "TABLE_1",
    "Paper",
    "cost",
    "dynamic_h",
    "fit",
    "hours",
    "lost_h",
    "model",
    "plateau",
    "stretch",
    "times",
]

SIZES = (2, 4, 8)
"""Numbers of K80s in the clusters of Tables III, IV and V."""
TABLE_1 = 4
"""Number of K80s in the clusters of Table I."""
MIXED_SLOW: Cluster = {"K80": 2, "P100": 1, "V100": 1}
MIXED_FAST: Cluster = {"K80": 1, "P100": 1, "V100": 2}
"""The clusters of several types that the paper's text has figures of."""
REVOKED = ((1, 2), (1, 4), (1, 8), (2, 4), (2, 8))
"""Revocations and numbers of workers of the rest of Table IV."""


class Paper:
    """The figures of data/icac19.yaml, in its units (hours, dollars, per cent). Reads the file."""

    def __init__(self) -> None:
        with as_file(files("spotmpi.bench.papers") / "data" / "icac19.yaml") as path:
            self._root = reading.load(path)

    def __call__(self, *names: str) -> float:
        """The figure that these names lead to."""
        field = self._root
        for name in names:
            field = field.need(name)
        return field.number()

    def text(self, name: str) -> float:
        """A figure of the paper's text."""
        return self("text", name, "value")

    def price(self, instance: str, kind: str) -> float:
        """Dollars an hour; ``kind`` is ``spot`` or ``on_demand``."""
        return self("table_2", "instances", instance, kind)

    def spot(self, cluster: Cluster) -> float:
        """Dollars an hour of spot workers."""
        return sum(n * self.price(name, "spot") for name, n in cluster.items())

    def alone_h(self) -> dict[str, float]:
        """Hours that one worker of each type needs for the training."""
        return {
            "K80": self("table_1", "one_on_demand", "time_h"),
            "P100": self("table_3", "P100", "time_h"),
            "V100": self("table_3", "V100", "time_h"),
        }


def model(paper: Paper, update_s: float) -> Queue:
    """The paper's training on one parameter server, if an update takes it ``update_s``.

    A worker alone never waits: its compute time is what is left of its time. Pure.
    """
    updates = int(paper.text("steps"))
    return Queue(
        name="ResNet-32 on CIFAR-10",
        compute_s={k: h * HOUR / updates - update_s for k, h in paper.alone_h().items()},
        update_s=update_s,
        server_instance="PS",
        servers=1,
        updates=updates,
    )


def hours(queue: Queue, cluster: Cluster) -> float:
    """Hours of the whole training. Pure."""
    assert queue.updates is not None  # `model` says
    return queue.updates / queue.rate(cluster) / HOUR


def plateau(paper: Paper, queue: Queue) -> float:
    """Time of 8 V100 by that of 4. Pure."""
    few = int(paper.text("plateau_workers"))
    return hours(queue, {"V100": 2 * few}) / hours(queue, {"V100": few})


def fit(paper: Paper) -> Queue:
    """The model whose ``update_s`` gives the `plateau` that was measured. Pure."""
    measured = paper.text("plateau_ratio")
    # A service time above the fastest worker's whole time is no model.
    low, high = 0.0, min(paper.alone_h().values()) * HOUR / paper.text("steps")
    for _ in range(60):
        middle = (low + high) / 2
        slower = plateau(paper, model(paper, middle)) < measured
        low, high = (middle, high) if slower else (low, middle)
    return model(paper, (low + high) / 2)


def stretch(workers: int, revocations: int) -> float:
    """How many times longer a training takes whose revocations are spread evenly over its work.

    The mean over all moments: on average each of the r + 1 pieces is as large as the others. Pure.
    """
    pieces = [workers / (workers - gone) for gone in range(revocations + 1)]
    return sum(pieces) / len(pieces)


def cost(
    paper: Paper, row: tuple[str, ...], server: str, workers: int, revocations: float, lost_h: float
) -> float:
    """Dollars of a row of spot K80s, from its time in the paper and conserved work. Pure.

    ``server`` is how the parameter server was bought, ``lost_h`` what each revocation costs more.
    """
    worker_h = workers * paper("table_4", "r0", f"K80x{workers}", "time_h") + revocations * lost_h
    return paper.price("PS", server) * paper(*row, "time_h") + paper.price("K80", "spot") * worker_h


def lost_h(paper: Paper) -> float:
    """Worker hours that a revocation costs beyond the lost capacity, by least squares. Pure.

    From Table IV's clusters of 2 and of 8: those of 4 are Table I's too, which it is to predict.
    """
    up = down = 0.0
    for revocations, workers in REVOKED:
        if workers != TABLE_1:
            row = ("table_4", f"r{revocations}", f"K80x{workers}")
            measured = paper(*row, "cost")
            missing = 1 - cost(paper, row, "on_demand", workers, revocations, 0.0) / measured
            each = paper.price("K80", "spot") * revocations / measured
            up, down = up + missing * each, down + each**2
    return up / down


def dynamic_h(queue: Queue, most: int) -> list[float]:
    """Hours of each part of a training with 1, 2 .. ``most`` K80s, one more after each part. Pure.

    The parts are of one size, and a new worker trains at once.
    """
    return [hours(queue, {"K80": n}) / most for n in range(1, most + 1)]


def times(paper: Paper, queue: Queue) -> Iterator[Row]:
    """Every time, or ratio of times, that the queue gives and the paper has. Pure."""
    two = queue.with_servers(2)
    k80 = {n: hours(queue, {"K80": n}) for n in SIZES}
    v100 = {n: hours(queue, {"V100": n}) for n in (4, 8)}
    added = sum(dynamic_h(queue, int(paper.text("steps") / paper.text("dynamic_every"))))

    for n, h in k80.items():
        figure = paper("table_4", "r0", f"K80x{n}", "time_h")
        yield Row("Table IV", f"{n} K80", "h", figure, h, "predicted", "queue")
    for n, h in k80.items():
        figure = paper("table_5", "on_demand", f"K80x{n}", "time_h")
        yield Row("Table V", f"{n} K80 on demand", "h", figure, h, "predicted", "queue")
    figure, ratio = paper.text("largest_speedup"), paper.alone_h()["K80"] / k80[8]
    what = "speed, 8 K80 / 1 on demand"
    yield Row("Fig. 4", what, "times", figure, ratio, "predicted", "queue: the row of 8 K80")
    what, note = "time, 8 V100 / 4", 'queue: the paper says "plateaus"; other runs: 0.88 to 0.91'
    yield Row("III-G", what, "times", None, plateau(paper, queue), "fitted", note)
    figure, ratio = paper.text("two_servers"), v100[8] / hours(two, {"V100": 8})
    what = "speed, 8 V100, 2 servers / 1"
    yield Row("III-G", what, "times", figure, ratio, "predicted", "queue")
    figure, ratio = 1 + paper.text("mixed_211_slower") / 100, hours(queue, MIXED_SLOW) / v100[4]
    what = "time, 2 K80 1 P100 1 V100 / 4 V100"
    yield Row("III-G", what, "times", figure, ratio, "predicted", "queue")
    figure, ratio = 1 - paper.text("mixed_112_faster") / 100, hours(queue, MIXED_FAST) / k80[4]
    what = "time, 1 K80 1 P100 2 V100 / 4 K80"
    yield Row("III-G", what, "times", figure, ratio, "predicted", "queue")
    figure, note = paper.text("dynamic_time"), "queue: added workers train at once"
    yield Row("III-F", "1, 2, 3, 4 K80", "h", figure, added, "predicted", note)
