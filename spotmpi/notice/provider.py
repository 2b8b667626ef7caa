"""What a watcher knows of a provider: whom to ask, how often, and what was new in the answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from spotmpi.notice import Notice, azure, ec2, gce
from spotmpi.notice.metadata import Ask

__all__ = ["ENDPOINTS", "Provider", "make"]

ENDPOINTS: Mapping[str, str] = {
    "ec2": "http://169.254.169.254",
    # metadata.google.internal, by its address: a name would have to be looked up.
    "gce": "http://169.254.169.254",
    "azure": "http://169.254.169.254",
}
"""Where the service of each provider is."""


class Provider(Protocol):
    """Asks one cloud's service."""

    name: str
    """As one says it: "EC2"."""
    pause: float
    """Seconds between two calls of `poll`."""

    def poll(self) -> list[Notice]:
        """Ask once, and return what was not told before. Blocks as its questions do.

        Raises `NoAnswer`; the next call asks again.
        """

    def safe(self) -> None:
        """Tell the cloud that it may take the host, where it wants to be told.

        Raises `NoAnswer`; the next call tells it again.
        """


def make(provider: str, ask: Ask) -> Provider:
    """The provider of that name."""
    match provider:
        case "ec2":
            return ec2.Ec2(ask)
        case "gce":
            return gce.Gce(ask)
        case "azure":
            return azure.Azure(ask)
    raise ValueError(provider)
