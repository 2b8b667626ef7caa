"""One step of one worker, as operators see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from spotmpi.arrays.backend import fill
from spotmpi.arrays.layout import Layout
from spotmpi.fabric import Buffer
from spotmpi.optimizers import Optimizer
from spotmpi.protocol.membership import WorkerId

__all__ = ["Bring", "Step", "StepPosition", "Weighted", "fragment"]

Bring = Callable[[Sequence[Buffer]], None]
"""Fills buffers of the layout. Each call fills them with the same values."""


def fragment(buckets: int, fragments: int, number: int) -> range:
    """Return the buckets that round ``number`` carries, if ``fragments`` parts take turns."""
    many = min(fragments, buckets)
    return range(number % many, buckets, many)


@dataclass(frozen=True)
class Weighted:
    """Brings ``weight`` times the values of ``pack``. The weight is the number of the gradient's
    samples, or less if the gradient was clipped.

    A plane that multiplies while it sums uses ``pack`` and ``weight`` apart: see
    `spotmpi.fabric.Arena.weighs`.
    """

    pack: Callable[[Sequence[Buffer], float], None]
    """Fills buffers with the values times a factor. With 1 it may find them there already."""
    weight: float
    """The factor. 0: it brings nothing."""

    def __call__(self, flats: Sequence[Buffer]) -> None:
        """Fill the buffers, as any `Bring` does."""
        if self.weight:
            self.pack(flats, self.weight)
        else:
            fill(flats, 0)


class StepPosition(NamedTuple):
    """Where one step of one worker stands: in the training, and in its round."""

    samples: float = 1.0
    """Samples that this worker's gradient stands for; 0: it has none that counts."""
    share: float = 1.0
    """Samples that all steps of this worker in the round stand for."""
    last: bool = True
    """True in the last step of a round: the step that has the round."""
    after: int = 1
    """Steps of the training that are taken, this one included."""
    rate: float = 0.0
    """The learning rate of a step that a worker takes for itself."""
    round: int = 0
    """Rounds of steps before this one."""
    sends: bool = False
    """True if the contribution to the round is made with this step, though steps may follow before
    the round ends. Only for a strategy with a `delay`."""
    many: int = 1
    """Steps of the training that this step adds to ``after``: 1, unless the strategy is
    asynchronous. Only such a strategy sets this field and those that follow it."""
    me: WorkerId = 0
    """This worker."""
    others: Sequence[WorkerId] = ()
    """The other workers in the training."""
    chance: float = 0.0
    """A random number of this worker and this step, at least 0 and less than 1."""
    before: WorkerId | None = None
    """The worker before this one in a ring of all workers, drawn again for each round. None:
    alone."""
    generation: int = 0
    """The generation of the membership that the ring is made of."""
    crew: Sequence[WorkerId] = ()
    """The workers that take steps on the way to this round, this worker included."""


_ANYWHERE = StepPosition()


@dataclass
class Step:
    """One training step on one worker, as its operators see it."""

    layout: Layout
    optimizer: Optimizer | None
    params: Sequence[Buffer]
    """This worker's own parameters."""
    memory: Mapping[str, Sequence[Buffer]] = field(default_factory=dict)
    """What the optimizer remembers, by name."""
    state: Mapping[str, Sequence[Buffer]] = field(default_factory=dict)
    """What the operators remember, by the names that they chose."""
    room: Callable[[], Sequence[Buffer]] = tuple
    """Returns memory for what is made of the gradient before the round; `own` uses it."""
    now: StepPosition = _ANYWHERE
    bring: Bring = lambda _buffers: None
    """Brings what earlier stages made of this worker's gradient, times its samples."""
    update: Sequence[Buffer] | None = None
    """What earlier stages made of this worker's gradient, or behind the round of its sums; None:
    nothing yet."""
    scale: float = 1.0
    """The factor that `update` is still to be multiplied with."""
    rate: float = 0.0
    """The learning rate in force: this worker's own before the round, then the round's."""
    weight: float = 1.0
    """Samples of all workers that brought something to the round's sums."""
    active: int = 1
    """Workers that brought something to the round's sums."""
    many: int = 1
    """Steps of the training that are being taken: before the round `StepPosition.many`, then all
    of the round."""
    fused: bool = False
    """True if the optimizer's update was done while the round was summed."""

    def carried(self, fragments: int) -> range:
        """Return the buckets that this step's round carries, if ``fragments`` parts take turns."""
        return fragment(len(self.params), fragments, self.now.round)

    def own(self) -> None:
        """Make this worker's own mean gradient the `update`. Only valid if the gradient counts."""
        flats = self.room()
        if isinstance(self.bring, Weighted):
            self.bring.pack(flats, 1.0)
            self.scale = self.bring.weight / self.now.samples
        else:
            self.bring(flats)
            self.scale = 1.0 / self.now.samples
        self.update = flats
