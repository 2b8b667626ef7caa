"""For tests of the fakes: a client that is none of spotmpi's own."""

from __future__ import annotations

import http.client
from collections.abc import Callable

import pytest

from spotmpi.testing import Service

Get = Callable[..., tuple[int, bytes, http.client.HTTPMessage]]


@pytest.fixture
def ask() -> Get:
    """``ask(service, path, headers, method, body)`` returns status, body and headers."""

    def one(
        service: Service,
        path: str,
        headers: dict[str, str] | None = None,
        method: str = "GET",
        body: bytes = b"",
    ) -> tuple[int, bytes, http.client.HTTPMessage]:
        port = int(service.endpoint.rpartition(":")[2])
        asking = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            asking.request(method, path, body or None, headers or {})
            response = asking.getresponse()
            return response.status, response.read(), response.headers
        finally:
            asking.close()

    return one
