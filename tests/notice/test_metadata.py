"""Questions over real sockets, to services that answer well, badly or never."""

from __future__ import annotations

import select
import socket

import pytest

from spotmpi.errors import NoAnswer
from spotmpi.notice.metadata import Answer, MetadataRequest, Service
from spotmpi.testing import EC2, GCE

STATE = "/computeMetadata/v1/instance/preempted"
GOOGLE = {"Metadata-Flavor": "Google"}


def test_an_answer_has_its_status_body_and_etag() -> None:
    with GCE() as cloud:
        answer = Service(cloud.endpoint)(MetadataRequest(STATE, GOOGLE))
        assert (answer.status, answer.body) == (200, b"FALSE")
        assert answer.etag
        assert Service(cloud.endpoint + "/")(MetadataRequest(STATE)).status == 403


def test_method_headers_and_body_arrive() -> None:
    with EC2() as cloud:
        Service(cloud.endpoint)(MetadataRequest("/x?y=1", {"A-b": "c"}, method="POST", body=b"{}"))
        (seen,) = cloud.requests
    assert (seen.method, seen.path, seen.body) == ("POST", "/x?y=1", b"{}")
    assert seen.headers["a-b"] == "c"


def test_no_proxy_is_ever_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with GCE() as cloud, EC2() as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.endpoint)
        monkeypatch.delenv("no_proxy", raising=False)
        assert Service(cloud.endpoint)(MetadataRequest(STATE, GOOGLE)).body == b"FALSE"
        assert proxy.requests == ()


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("hanging", "no answer within 0.3 s"),
        ("dripping", "no answer within 0.3 s|does not speak HTTP"),
        ("garbage", "it does not speak HTTP"),
        ("huge", "more than 262144 bytes"),
        ("refused", "Connection refused"),
    ],
)
def test_a_service_that_fails_is_given_up(fault: str, why: str) -> None:
    with GCE() as cloud:
        cloud.misbehave(fault)
        patience = 0.3 if "0.3" in why else 60.0
        with pytest.raises(NoAnswer, match=why):
            Service(cloud.endpoint)(MetadataRequest(STATE, GOOGLE, patience=patience))
        cloud.behave()
        assert Service(cloud.endpoint)(MetadataRequest(STATE, GOOGLE)).body == b"FALSE"


def test_a_slow_service_is_waited_for() -> None:
    with GCE() as cloud:
        cloud.misbehave("slow", seconds=0.3)
        patient = MetadataRequest(STATE, GOOGLE, patience=60.0)
        assert Service(cloud.endpoint)(patient).body == b"FALSE"
        cloud.misbehave("slow", seconds=300)
        with pytest.raises(NoAnswer, match="no answer within"):
            Service(cloud.endpoint)(MetadataRequest(STATE, GOOGLE, patience=0.1))


def test_a_service_that_takes_no_connection_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, socket.socket() as filler:
        filler.setblocking(False)
        filler.connect_ex(full.getsockname())  # the queue is full now: the kernel drops the next
        port = full.getsockname()[1]
        with pytest.raises(NoAnswer, match="no answer within"):
            Service(f"http://127.0.0.1:{port}")(MetadataRequest("/", patience=0.2))


def test_a_name_that_is_unknown_is_no_answer() -> None:
    with pytest.raises(NoAnswer):
        Service("http://no-such-host.invalid")(MetadataRequest("/"))


class Interrupted(Exception):
    """What a wait raises when something else has happened."""


@pytest.mark.parametrize("fault", ["hanging", "dripping", "huge"])
def test_waiting_can_be_interrupted_and_leaves_no_socket(fault: str) -> None:
    def wait(descriptor: int, events: int, seconds: float) -> bool:
        if events == select.POLLIN:
            raise Interrupted
        return True

    with GCE() as cloud:
        cloud.misbehave(fault)
        with pytest.raises(Interrupted):
            Service(cloud.endpoint, wait)(MetadataRequest(STATE, GOOGLE))


def test_an_answer_that_the_other_end_cut_short_is_none() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        said: list[Answer] = []

        def wait(descriptor: int, events: int, seconds: float) -> bool:
            if events == select.POLLIN and not said:
                link, _ = listener.accept()
                link.recv(1000)
                link.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nTRUE")
                link.close()
                said.append(Answer(200))
            return True

        port = listener.getsockname()[1]
        with pytest.raises(NoAnswer, match="does not speak HTTP"):
            Service(f"http://127.0.0.1:{port}", wait)(MetadataRequest("/"))
