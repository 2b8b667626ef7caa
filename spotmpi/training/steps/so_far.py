"""Counts of one worker's steps on the way to a round, and the loss that it tells with it."""

from __future__ import annotations

__all__ = ["SoFar"]


class SoFar:
    """What one worker's steps on the way to a round have come to so far."""

    def __init__(self, began: float) -> None:
        self.began = began
        """Time when this worker could begin with them, on the fabric's clock."""
        self.brought = 0
        """Steps with a gradient that counts."""
        self.samples = 0
        """Samples of the gradients that count."""
        self._loss = self._weight = 0.0
        """Sums of the losses that the round tells, and of their weights."""
        self._untold: list[tuple[float, int]] = []
        """Losses, and their weights, that no round has told."""
        self.rates: list[float] = []
        """Learning rates that the script wanted, one for each step."""

    def tell(self) -> dict[str, float]:
        """Return the mean loss so far, as fields of the round's `ControlWord`; for a retry again,
        with the losses that have come since."""
        for loss, weight in self._untold:
            self._loss += loss * weight
            self._weight += weight
        self._untold = []
        if not self._weight:
            return {}
        return {"loss": self._loss / self._weight, "loss_weight": self._weight}

    def take_over(self, before: SoFar) -> None:
        """Take over the losses of ``before`` that no round has told. There are some with a delay: a
        round tells the losses until its part is sent."""
        self._untold = before._untold

    def add(self, weight: int, loss: float | None, rate: float) -> None:
        """Count one more step, with the learning rate that the script wants."""
        self.rates.append(rate)
        self.brought += weight > 0
        self.samples += weight
        if loss is not None:
            self._untold.append((float(loss), weight))
