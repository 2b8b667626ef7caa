"""What a checkpoint keeps of a torch script: what it trains with, and how far it is in its data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from spotmpi.errors import CheckpointError, UsageError
from spotmpi.protocol.membership import WorkerId
from spotmpi.protocol.plain_values import NONSENSE, pack, unpack
from spotmpi.torch.belongings import Belongings
from spotmpi.torch.dealing import Place, Samples
from spotmpi.torch.loaders import Orders
from spotmpi.torch.passes import Passes
from spotmpi.training.model import OwnModel
from spotmpi.training.state.finite import OWN_FINITE

__all__ = ["Found", "KeptScript"]

_HOLDS, _NUMBERS, _TRAINED = "torch/holds", "torch/numbers", "torch/trained"
_USED, _WORKERS, _LEFT, _MISSED = "torch/used", "torch/workers", "torch/left", "torch/missed"
_ORDERS, _COURSE, _LATE = "torch/orders", "torch/course", "torch/late"
_SUMMED = "torch/summed"


class Found(NamedTuple):
    """What a checkpoint has kept of a script."""

    kept: Mapping[str, Any]
    """All of it, by name."""
    where: str
    """Which checkpoint it is."""
    trained: Sequence[bool]
    """The passes that were over: True for those in which gradients were summed."""
    place: Place | None
    """The place in the pass that was under way; None: there was none."""
    late: tuple[int, ...] | None
    """What tells its loader from others, if that pass began within another one."""


class KeptScript(OwnModel):
    """What the script trains with, as plain values that survive (`arrays.registry.Values`), in
    checkpoints. Newcomers get them in another way. A resumed script goes through the passes that
    were over once more, with one batch of each. Until it is where the checkpoint was written, the
    same is kept again."""

    def __init__(self, belongings: Belongings) -> None:
        """``belongings``: all that the script trains with."""
        self.belongings = belongings
        self.passes = Passes()
        """Those under way."""
        self.orders = Orders()
        """Those of the samples."""
        self.found: Found | None = None
        """What this job goes on from, until its script is there."""

    def kept(self) -> Mapping[str, Any]:
        """Return what a checkpoint keeps, by name. Raises UsageError if that cannot be."""
        if self.found is not None:
            return self.found.kept
        self.belongings.look(len(self.passes.trained))
        self.broken = self.belongings.broken
        now = self.passes.now
        over = None if now is None else now.number
        known: dict[str, Any] = {
            _HOLDS: self.belongings.described,
            _NUMBERS: self.belongings.numbers,
            OWN_FINITE: self.broken is None,
            _TRAINED: "".join(str(int(one)) for one in self.passes.trained[:over]),
            _MISSED: self.passes.missed,
            _COURSE: self.passes.course if now is None else now.course,
            _ORDERS: pack(self.orders.told(now and now.way and now.way.loader)),
        }
        if now is not None and now.way is not None:
            place = now.place
            known |= {_USED: place.used, _WORKERS: place.workers, _SUMMED: place.summed}
            known |= {} if place.left is None else {_LEFT: place.left}
            known |= {_LATE: pack(now.way.known_by)} if now.late else {}
        return known

    def resume(self, found: Mapping[str, Any], where: str) -> None:
        """Go on from what the checkpoint ``where`` kept. Raises CheckpointError."""
        kept = {name: value for name, value in found.items() if name.startswith("torch/")}
        try:
            unpack(kept[_HOLDS])
            if kept[_NUMBERS].dtype != np.uint8 or kept[_NUMBERS].ndim != 1:
                raise ValueError(f"{_NUMBERS} are no bytes")
            place, late = None, None
            if _USED in kept:
                late = tuple(map(int, unpack(kept[_LATE]))) if _LATE in kept else None
                left: Samples | None = kept.get(_LEFT)
                if left is not None and (left.dtype != np.int64 or left.ndim != 1):
                    raise ValueError(f"{_LEFT} are no samples")
                used = int(kept[_USED])
                summed = bool(kept.get(_SUMMED, used > 0 or _LEFT in kept))
                place = Place(used, max(1, int(kept[_WORKERS])), left, summed)
            trained = [one == "1" for one in kept[_TRAINED]]
            int(kept[_MISSED]), int(kept[_COURSE])
            {int(number): bytes(order) for number, order in unpack(kept[_ORDERS])}
        except NONSENSE as error:
            raise CheckpointError(
                f"{where} does not say what a script for DistributedDataParallel trains with, and "
                f"how far it is: it was written by another script ({error!r})"
            ) from error
        self.found = Found(kept, where, trained, place, late)

    def take(self) -> None:
        """Let the script have what it trained with. Raises UsageError if it has something else."""
        assert self.found is not None
        holds = self.found.kept[_HOLDS]
        try:
            self.belongings.tidy()
            self.belongings.check(holds)
            self.belongings.take(holds, self.found.kept[_NUMBERS])
        except UsageError as error:
            raise UsageError(f"this script cannot go on from {self.found.where}: {error}") from None

    def arrive(self) -> Place | None:
        """Note that the script is where the checkpoint was written. Return its place in the pass
        that it begins; None: at its beginning. Raises UsageError if it has come another way."""
        assert self.found is not None
        found, course = self.found, self.passes.course
        if course != found.kept[_COURSE]:
            raise UsageError(
                f"this script cannot go on from {found.where}: it has not gone through the same "
                "passes as before"
            )
        self.found = None
        self.passes = Passes(self.passes.trained, int(found.kept[_MISSED]), course)
        self.orders.take(unpack(found.kept[_ORDERS]))
        return found.place

    def snapshot(self, contributors: Sequence[WorkerId] | None) -> None:
        """Return nothing."""

    def restore(self, told: None) -> None:
        """Do nothing."""
