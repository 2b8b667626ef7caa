"""What all fakes have in common: faults that can be switched, and an end that leaves nothing."""

from __future__ import annotations

import http.client
import socket
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from spotmpi.testing import EC2, FAULTS, GCE, Azure, Service

CLOUDS = pytest.mark.parametrize("cloud", [EC2, GCE, Azure])


def ask(service: Service, timeout: float = 60.0) -> int:
    """Ask for something, and return the status of the answer."""
    port = int(service.endpoint.rpartition(":")[2])
    asking = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        asking.request("GET", "/")
        response = asking.getresponse()
        response.read(1 << 20)
        return response.status
    finally:
        asking.close()


@CLOUDS
@pytest.mark.parametrize("fault", [None, *FAULTS])
def test_nothing_is_left_after_the_block(
    cloud: type[Service], fault: str | None, descriptors: Callable[[], list[str]]
) -> None:
    before = threading.active_count(), descriptors()
    # Both connections stay to the end of the service, and longer.
    with socket.socket() as mute, socket.socket() as asking, cloud() as service:
        if fault is not None:
            service.misbehave(fault, seconds=300)
        port = int(service.endpoint.rpartition(":")[2])
        if fault != "refused":
            mute.connect(("127.0.0.1", port))
            asking.connect(("127.0.0.1", port))
            asking.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            service.wait_for_requests(0 if fault == "slow" else 1)
    assert (threading.active_count(), descriptors()) == before
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


@CLOUDS
def test_faults_are_what_they_are_called_and_end(cloud: type[Service]) -> None:
    with cloud() as service:
        usual = ask(service)
        service.misbehave("error")
        assert ask(service) == 500
        service.misbehave("garbage")
        with pytest.raises(http.client.BadStatusLine):
            ask(service)
        service.misbehave("hanging")
        with pytest.raises(TimeoutError):
            ask(service, timeout=0.2)
        service.misbehave("dripping")
        port = int(service.endpoint.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=60) as asking:
            asking.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert [asking.recv(1) for _ in range(4)] == [b"H"] * 4
        service.misbehave("huge")
        assert ask(service) == 200
        service.misbehave("slow", seconds=300)
        with pytest.raises(TimeoutError):
            ask(service, timeout=0.1)
        service.misbehave("slow", seconds=0.1)
        assert ask(service) == usual
        for _ in range(2):
            service.misbehave("refused")
            service.misbehave("refused")
            with pytest.raises(ConnectionRefusedError):
                ask(service)
            service.behave()
            service.behave()
            assert ask(service) == usual


def test_a_service_may_refuse_from_the_start() -> None:
    service = EC2()
    service.misbehave("refused")
    with service:
        with pytest.raises(ConnectionRefusedError):
            ask(service)
        service.behave()
        assert ask(service) == 401


def test_a_fault_that_is_none_is_refused() -> None:
    with EC2() as service, pytest.raises(ValueError, match="choose one of slow, hanging, "):
        service.misbehave("lazy")


def test_what_was_asked_is_kept_and_can_be_waited_for() -> None:
    with GCE() as service:
        asking = threading.Thread(target=ask, args=(service,))
        asking.start()
        (seen,) = service.wait_for_requests(1)
        asking.join()
        assert (seen.method, seen.path, seen.status) == ("GET", "/", 403)
        with pytest.raises(TimeoutError, match="1 of 2 questions"):
            service.wait_for_requests(2, timeout=0.01)


def test_it_may_be_used_again() -> None:
    service = EC2()
    for _ in range(2):
        with service:
            assert ask(service) == 401


def test_it_listens_on_the_loopback_only() -> None:
    with EC2() as service:
        assert service.endpoint.startswith("http://127.0.0.1:")
        port = int(service.endpoint.rpartition(":")[2])
        with open("/proc/net/tcp") as table:
            listening = [line.split()[1] for line in table if line.split()[3] == "0A"]
        assert f"0100007F:{port:04X}" in listening
        assert f"00000000:{port:04X}" not in listening


def test_options_and_variables_say_the_same() -> None:
    with GCE() as service:
        assert service.options == ["--notice", "gce", "--notice-endpoint", service.endpoint]
        assert list(service.environ.values()) == ["gce", service.endpoint]


def test_an_exception_in_the_block_ends_it_as_well() -> None:
    def block() -> None:
        with GCE() as service:
            service.misbehave("hanging")
            raise ZeroDivisionError

    before = threading.active_count()
    with pytest.raises(ZeroDivisionError):
        block()
    assert threading.active_count() == before


def test_importing_it_starts_nothing_and_needs_nothing_heavy() -> None:
    code = (
        "import sys, threading, spotmpi.testing\n"
        "assert not {'numpy', 'mpi4py', 'numba', 'h5py'} & set(sys.modules)\n"
        "assert threading.active_count() == 1"
    )
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)
