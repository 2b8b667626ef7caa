"""What a training does on a cluster: the questions that every model answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from spotmpi.economy.quantities import Cluster
from spotmpi.errors import UsageError

__all__ = ["LOCAL", "Model", "Server", "unknown_type"]

LOCAL = "local"
"""How a profile calls a host that was measured, and of which nobody has said what it is."""


@dataclass(frozen=True)
class Server:
    """What the parameters are served by, which costs and trains nothing."""

    instance: str
    count: int


class Model(Protocol):
    """A training, measured, and so predictable on clusters of the types that it knows."""

    @property
    def name(self) -> str:
        """What is trained, for people."""

    @property
    def types(self) -> Sequence[str]:
        """The instance types that it knows, in the order of its profile."""

    @property
    def error(self) -> float | None:
        """How far a predicted time was off, at most, where it was compared with a measured one:
        0.1 is 10 %. None: nobody has compared."""

    @property
    def server(self) -> Server | None:
        """What it needs beside its workers; None: nothing (a ring)."""

    @property
    def length(self) -> float | None:
        """Iterations of the whole training, where the profile says so."""

    def rate(self, cluster: Cluster) -> float:
        """Iterations per second of the whole cluster; 0 of an empty one.

        UsageError for a type that it does not know. Pure; may be slow: callers remember.
        """

    def bottleneck(self, cluster: Cluster) -> str:
        """What one would need more of: ``compute``, ``parameter server``, ``network`` and so on."""

    def iterations(self, cluster: Cluster, loss: float) -> float:
        """Iterations until the loss is reached on this cluster.

        UsageError if no number of iterations reaches it, or the profile has no loss.
        """

    def loss_after(self, cluster: Cluster, iterations: float) -> float:
        """The loss after so many iterations on this cluster. UsageError as of `iterations`."""


def unknown_type(profile: str, wanted: str, known: Sequence[str]) -> UsageError:
    """The complaint about an instance type that a profile does not know: why, and what to do."""
    measure = f"profile your script on one (spotmpi profile --instance {wanted})"
    help_ = (
        f"{LOCAL} is a host that was profiled without --instance: if it is a {wanted}, write "
        f"{wanted} in its place into the profile, and else {measure}"
        if LOCAL in known
        else f"ask for one of these, or {measure}"
    )
    return UsageError(
        f"the profile of {profile} does not know instance type {wanted!r}; it knows "
        f"{', '.join(known)}, as it was measured there; {help_}"
    )
