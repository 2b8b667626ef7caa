"""The process itself: what it says, what it costs, and that nothing keeps it alive."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spotmpi.notice import Notice
from spotmpi.notice import __main__ as program
from spotmpi.testing import EC2, FAULTS, GCE, Azure, Service

LIMIT = 60
Start = Callable[..., "subprocess.Popen[bytes]"]
CLOUDS = pytest.mark.parametrize("cloud", [EC2, GCE, Azure])


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """``start(cloud)`` starts a watcher, as a launcher does."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(cloud: Service, *options: str, **more: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(program.__file__), "--provider", cloud.provider, *options]
        watcher = subprocess.Popen(
            command,
            cwd=tmp_path,
            env=os.environ | {"SPOTMPI_NOTICE_ENDPOINT": cloud.endpoint} | more,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        started.append(watcher)
        return watcher

    yield begin
    for watcher in started:
        watcher.kill()
        with watcher:  # closes the pipes, and waits
            pass


def heard(watcher: subprocess.Popen[bytes]) -> Notice:
    assert watcher.stdout is not None
    return Notice.decode(watcher.stdout.readline())


def end(watcher: subprocess.Popen[bytes]) -> int:
    assert watcher.stdin is not None
    watcher.stdin.close()
    return watcher.wait(LIMIT)


@CLOUDS
def test_a_notice_is_heard_and_the_end_of_the_input_ends_it(
    start: Start, cloud: type[Service]
) -> None:
    with cloud() as service:
        watcher = start(service)
        service.wait_for_requests(1)
        service.preempt(in_seconds=100)
        assert heard(watcher).source == service.provider
        assert end(watcher) == 0
        assert watcher.stderr is not None
        assert watcher.stderr.read() == b""


@CLOUDS
@pytest.mark.parametrize("fault", FAULTS)
def test_no_fault_of_a_service_keeps_it_alive(
    start: Start, cloud: type[Service], fault: str
) -> None:
    with cloud() as service:
        service.misbehave(fault, seconds=100)
        watcher = start(service)
        if fault != "refused" and fault != "slow":
            service.wait_for_requests(1)
        assert end(watcher) == 0


@pytest.mark.matrix
def test_a_service_that_recovers_is_heard_again(start: Start) -> None:
    with Azure() as service:
        service.misbehave("refused")
        watcher = start(service)
        assert watcher.stderr is not None
        said = watcher.stderr.readline().decode()
        assert said.startswith("Azure's metadata service gives no usable answer (")
        service.preempt(in_seconds=30)
        service.behave()
        assert heard(watcher).what == "Azure preemption"


@pytest.mark.matrix
def test_tokens_that_expire_lose_no_notice(start: Start) -> None:
    with EC2() as service:
        watcher = start(service)
        service.wait_for_requests(3)
        service.expire_tokens()
        service.preempt(in_seconds=100)
        assert heard(watcher).what == "EC2 spot instance action: terminate"
        assert [r.status for r in service.requests].count(401) == 1


@pytest.mark.parametrize("closing", [False, True])
def test_azure_is_told_that_the_host_is_safe_and_not_before(start: Start, closing: bool) -> None:
    with Azure() as service:
        other = service.schedule("Preempt", ["another-vm"], 30)
        service.preempt(in_seconds=30)
        watcher = start(service)
        heard(watcher)
        assert service.acknowledged == ()
        assert watcher.stdin is not None
        watcher.stdin.write(b"safe\n")
        watcher.stdin.flush()
        if not closing:
            service.wait_for_requests(len(service.requests) + 2)
        assert end(watcher) == 0
        # Once more if the input ends before the service has answered.
        (event,) = set(service.acknowledged)
        assert event != other


def test_an_endpoint_may_be_given_as_an_option(start: Start) -> None:
    with EC2() as unused, GCE() as service:
        service.preempt()
        watcher = start(unused, "--endpoint", service.endpoint, "--provider", "gce")
        assert heard(watcher).source == "gce"
        assert unused.requests == ()


@pytest.mark.parametrize("endpoint", ["https://x", "127.0.0.1:80", "http://h:99999", "http://a/b"])
def test_an_endpoint_that_is_none_is_refused(start: Start, endpoint: str) -> None:
    with EC2() as service:
        watcher = start(service, "--endpoint", endpoint)
        assert watcher.wait(LIMIT) == 2
        assert watcher.stderr is not None
        assert b"give http://HOST:PORT" in watcher.stderr.read()


def test_nothing_in_the_working_directory_is_taken_for_a_module(
    start: Start, tmp_path: Path
) -> None:
    for name in ("spotmpi", "json", "select", "http", "socket", "argparse"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')")
    with GCE() as service:
        service.preempt()
        assert heard(start(service)).source == "gce"


def test_another_spotmpi_that_is_installed_is_not_taken(start: Start, tmp_path: Path) -> None:
    (tmp_path / "spotmpi.py").write_text("raise SystemExit('the wrong spotmpi')")
    with GCE() as service:
        service.preempt()
        assert heard(start(service, PYTHONPATH=str(tmp_path))).source == "gce"


def test_it_is_of_low_priority_and_has_loaded_little(start: Start) -> None:
    with GCE() as service:
        watcher = start(service)
        service.wait_for_requests(1)
        assert os.getpriority(os.PRIO_PROCESS, watcher.pid) >= 10
        maps = Path(f"/proc/{watcher.pid}/maps").read_text()
        assert not [name for name in ("numpy", "mpi4py", "numba", "libmpi") if name in maps]
        status = Path(f"/proc/{watcher.pid}/status").read_text()
        resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        assert int(resident.split()[1]) < 60_000
        assert "Threads:\t1\n" in status


def test_its_modules_import_little() -> None:
    code = (
        "import json, sys, spotmpi.notice.__main__\n"
        "print(json.dumps(sorted(m for m in sys.modules if m.startswith('spotmpi'))))\n"
        "assert not {'numpy', 'mpi4py', 'numba', 'h5py'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=LIMIT, check=True
    )
    loaded = {name.partition(".")[2].partition(".")[0] for name in json.loads(done.stdout)}
    assert loaded == {"", "errors", "notice", "settings", "version"}


def test_a_parent_that_is_killed_takes_it_along(tmp_path: Path) -> None:
    with GCE() as service:
        service.misbehave("hanging")
        code = (
            "import signal, subprocess, sys\n"
            f"w = subprocess.Popen([sys.executable, {program.__file__!r}, '--provider', 'gce',"
            f" '--endpoint', {service.endpoint!r}], stdin=-1, stdout=-1)\n"
            "print(w.pid, flush=True)\n"
            "signal.pause()"
        )
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
            assert parent.stdout is not None
            watcher = os.pidfd_open(int(parent.stdout.readline()))
            try:
                service.wait_for_requests(1)
                parent.send_signal(signal.SIGKILL)
                parent.wait()
                assert select.select([watcher], [], [], LIMIT)[0]
            finally:
                os.close(watcher)
