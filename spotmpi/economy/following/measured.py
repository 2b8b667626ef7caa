"""A model that has been corrected by what is seen of the training itself. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from spotmpi.economy.models import Model, Server, calibration
from spotmpi.economy.models.ring import Ring
from spotmpi.economy.quantities import Cluster
from spotmpi.errors import UsageError

__all__ = ["Measured", "with_own_curve"]

_FEWEST = 200
_OFF = 0.2
"""A curve that is further off where it was held out is no prediction."""


@dataclass(frozen=True)
class Measured:
    """The same model, so many times as fast. A `models.Model`."""

    model: Model
    factor: float

    @property
    def name(self) -> str:
        """As the model has it."""
        return self.model.name

    @property
    def types(self) -> Sequence[str]:
        """As the model has it."""
        return self.model.types

    @property
    def error(self) -> float | None:
        """As the model has it."""
        return self.model.error

    @property
    def server(self) -> Server | None:
        """As the model has it."""
        return self.model.server

    @property
    def length(self) -> float | None:
        """As the model has it."""
        return self.model.length

    def rate(self, cluster: Cluster) -> float:
        """As seen."""
        return self.factor * self.model.rate(cluster)

    def bottleneck(self, cluster: Cluster) -> str:
        """As the model has it."""
        return self.model.bottleneck(cluster)

    def iterations(self, cluster: Cluster, loss: float) -> float:
        """As the model has it."""
        return self.model.iterations(cluster, loss)

    def loss_after(self, cluster: Cluster, iterations: float) -> float:
        """As the model has it."""
        return self.model.loss_after(cluster, iterations)


def with_own_curve(
    model: Model, batches: Sequence[float], losses: Sequence[float], workers: float, loss: float
) -> Model:
    """The ring model with the curve of this very run in the place of its profile's, once it
    predicts the losses that were held out, and reaches the one that is asked for."""
    if not isinstance(model, Ring) or model.loss is None or len(losses) < _FEWEST:
        return model
    off = calibration.loss_error(batches, losses)
    curve = calibration.fit_loss(batches, losses)
    if curve is None or off is None or off > _OFF:
        return model
    own = replace(curve, workers=workers, noise=model.loss.noise)
    try:
        own.iterations(loss)
    except UsageError:
        return model
    return Ring(model.name, model.hosts, model.gradient_mb, error=model.error, loss=own)
