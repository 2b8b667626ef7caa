"""One step of one worker, as operators see it, and what they ask for in it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spotmpi.arrays.backend import fill
from spotmpi.arrays.layout import Layout
from spotmpi.fabric import AddUp, Buffer, Fetch, Publish
from spotmpi.optimizers import Optimizer
from spotmpi.protocol.membership import WorkerId

__all__ = ["Bring", "Contribute", "StepPosition", "Run", "Step", "Weighted", "fragment"]

Bring = Callable[[Sequence[Buffer]], None]
"""Fills buffers of the layout; as often as it is called, with the same."""


def fragment(buckets: int, fragments: int, number: int) -> range:
    """The buckets that the round of this number carries, if fragments of the model take turns."""
    many = min(fragments, buckets)
    return range(number % many, buckets, many)


@dataclass(frozen=True)
class Weighted:
    """What brings ``weight`` times what ``pack`` fills buffers with: the weight is the number of
    the gradient's samples, or less where it was clipped.

    A data plane that multiplies while it sums takes the two apart (`spotmpi.fabric.Arena.weighs`).
    """

    pack: Callable[[Sequence[Buffer], float], None]
    """Fills buffers with so many times what there is; with 1, it may find it there already."""
    weight: float
    """0: it brings nothing, whatever there is."""

    def __call__(self, flats: Sequence[Buffer]) -> None:
        """As any `Bring`."""
        if self.weight:
            self.pack(flats, self.weight)
        else:
            fill(flats, 0)


@dataclass(frozen=True)
class StepPosition:
    """Where one step of one worker stands: in the training, and in its round."""

    samples: float = 1.0
    """What this worker's gradient stands for; 0: it has none that counts."""
    share: float = 1.0
    """The same of all its steps of the round."""
    last: bool = True
    """The last step of a round: the one that has it."""
    after: int = 1
    """So many steps of the training are taken with it."""
    rate: float = 0.0
    """The learning rate of a step that a worker takes for itself."""
    round: int = 0
    """Rounds of steps before this one."""
    sends: bool = False
    """What the round is brought is made with this step, though steps may follow before it ends: of
    a strategy with operators that are `Operator.ahead`."""
    many: int = 1
    """Of the steps that are taken with it so many are new: one, but where workers are
    `Operator.paced`; and only there: ..."""
    me: WorkerId = 0
    """... who this worker is, ..."""
    others: Sequence[WorkerId] = ()
    """... who else is in the training, ..."""
    chance: float = 0.0
    """... a number of this worker and this step, at least 0 and less than 1, at random, ..."""
    before: WorkerId | None = None
    """... who stands before this worker in a ring of all, which is drawn anew for each round ..."""
    generation: int = 0
    """... and of which membership that ring is, ..."""
    crew: Sequence[WorkerId] = ()
    """... and who takes steps on the way to this round, this worker too."""


@dataclass
class Step:
    """One training step on one worker, as its operators see it."""

    layout: Layout
    optimizer: Optimizer | None
    params: Sequence[Buffer]
    """This worker's own."""
    memory: Mapping[str, Sequence[Buffer]] = field(default_factory=dict)
    """What the optimizer remembers, by name."""
    state: Mapping[str, Sequence[Buffer]] = field(default_factory=dict)
    """What the operators remember, by the names that they gave it."""
    room: Callable[[], Sequence[Buffer]] = tuple
    """Memory for what is made of the gradient before the round; `own` uses it."""
    now: StepPosition = StepPosition()
    bring: Bring = lambda _buffers: None
    """What the stages so far have made of this worker's gradient, times its samples ..."""
    update: Sequence[Buffer] | None = None
    """... and of the round's sums, or, before the round, of that gradient; None: nothing yet."""
    scale: float = 1.0
    """What `update` is to be multiplied with."""
    rate: float = 0.0
    """The learning rate that holds: before the round this worker's own, then the round's."""
    weight: float = 1.0
    """Samples of all workers who brought something to the round's sums."""
    active: int = 1
    """Workers who brought something to them."""
    many: int = 1
    """Steps that are being taken: one before the round, then all of the round."""

    def own(self) -> None:
        """Make this worker's own mean gradient the `update`; only where it counts."""
        flats = self.room()
        if isinstance(self.bring, Weighted):
            self.bring.pack(flats, 1.0)
            self.scale = self.bring.weight / self.now.samples
        else:
            self.bring(flats)
            self.scale = 1.0 / self.now.samples
        self.update = flats


@dataclass(frozen=True)
class Contribute:
    """Open the round of this step: sum what ``bring`` writes over all workers. Replies the sums.

    ``bring`` may be called again if the round is tried again.
    """

    bring: Bring
    alone: bool = False
    """Nothing counts but what the first worker brings that was dealt samples; if it is lost before
    anybody has the sums, what the next one brings."""


Run = Generator[Contribute | Publish | Fetch | AddUp, Any, None]
