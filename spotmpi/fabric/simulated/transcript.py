"""Describes in words what workers of a simulation ask for."""

from __future__ import annotations

from spotmpi.fabric import Fetch, Rebuild, Request, Share, Welcome
from spotmpi.protocol.recovery import Send

__all__ = ["described"]


def described(request: Request) -> str:
    """Return ``request`` as a line of a transcript."""
    match request:
        case Send(to, token):
            lost = ",".join(map(str, sorted(token.lost))) or "nobody"
            return f"sends {token.kind.name.lower()} {token.attempt} (lost {lost}) to {to}"
        case Rebuild(members, change):
            what = f" ({change})" if change else ""
            return f"builds{what}" if members is not None else "builds without a verdict"
        case Welcome(newcomer):
            return f"welcomes {newcomer}"
        case Share(source):
            return f"shares the record of {source}"
        case Fetch(worker):
            return f"fetches the model of {worker}"
        case _:
            return type(request).__name__.lower()
