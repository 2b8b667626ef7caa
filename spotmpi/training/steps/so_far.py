"""What one worker's steps on the way to a round have come to so far."""

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
        """Return the mean loss so far, which the round tells, by `ControlWord`'s names."""
        for loss, weight in self._untold:
            self._loss += loss * weight
            self._weight += weight
        self._untold = []
        if not self._weight:
            return {}
        return {"loss": self._loss / self._weight, "loss_weight": self._weight}

    def go_on(self, before: SoFar) -> None:
        """Take over the losses that no round has told: with a delay a round tells no later ones
        than when its part was sent."""
        self._untold = before._untold

    def add(self, weight: int, loss: float | None, rate: float) -> None:
        """Count one more step, with the learning rate that the script wants."""
        self.rates.append(rate)
        self.brought += weight > 0
        self.samples += weight
        if loss is not None:
            self._untold.append((float(loss), weight))
