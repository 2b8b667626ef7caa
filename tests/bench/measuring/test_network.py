"""The hosts of benches, and what runs on them."""

from __future__ import annotations

import subprocess
import sys
from os import close, pidfd_open
from pathlib import Path
from select import select

import pytest

import spotmpi
from spotmpi.bench.measuring.network import Network, missing


def test_jobs_are_of_the_spotmpi_that_measures_and_of_no_other_that_is_found_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (why := missing()) is not None:
        pytest.skip(why)
    other = tmp_path / "elsewhere" / "spotmpi"
    other.mkdir(parents=True)
    (other / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(other.parent))
    (tmp_path / "network").mkdir()
    with Network(tmp_path / "network", 1) as network:
        program = sys.executable, "-c", "import spotmpi; print(spotmpi.__file__)"
        for command in (
            network.in_head(*program),
            network.in_head("ssh", "-oStrictHostKeyChecking=no", "h1", *map(repr, program)),
        ):
            done = subprocess.run(
                command, cwd=tmp_path, env=network.environ, capture_output=True, text=True
            )
            assert done.stdout == f"{spotmpi.__file__}\n", done.stderr


def test_a_host_that_is_killed_has_no_process_left(tmp_path: Path) -> None:
    """Else its workers may finish a training that they are to be missing in."""
    if (why := missing()) is not None:
        pytest.skip(why)
    with Network(tmp_path, 1) as network:
        many = "for i in $(seq 60); do (while true; do :; done) & done; echo begun; wait"
        sleeps = network.in_head("ssh", "-oStrictHostKeyChecking=no", "h1", many)
        with subprocess.Popen(sleeps, env=network.environ, stdout=subprocess.PIPE, text=True) as it:
            assert it.stdout is not None
            assert it.stdout.readline() == "begun\n"
            inside = [pidfd_open(pid) for pid in network.processes("h1", "seq 60")]
            assert len(inside) > 60
            network.kill("h1")
            gone, _, _ = select(inside, [], [], 0)
            for one in inside:
                close(one)
            it.kill()
    assert len(gone) == len(inside)


_HEARS = """
import socket
link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
link.bind(("10.77.0.1", 5555))
link.settimeout(60)
print("up", flush=True)
while (said := link.recv(64)) != b"over":
    print(said.decode(), flush=True)
"""

_SAYS = """
import socket, sys
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(sys.argv[1].encode(), ("10.77.0.1", 5555))
"""


def test_of_a_host_that_is_cut_off_the_head_hears_no_datagram_either(tmp_path: Path) -> None:
    if (why := missing()) is not None:
        pytest.skip(why)
    with Network(tmp_path, 1) as network:
        says = sys.executable, "-c", _SAYS
        hears = network.in_head(sys.executable, "-c", _HEARS)
        with subprocess.Popen(hears, stdout=subprocess.PIPE, text=True) as head:
            assert head.stdout is not None
            assert head.stdout.readline() == "up\n"
            subprocess.run(network.in_host("h1", *says, "before"), check=True)
            assert head.stdout.readline() == "before\n"
            network.separate("h1")
            subprocess.run(network.in_host("h1", *says, "cut off"), check=True)
            subprocess.run(network.in_head(*says, "over"), check=True)
            assert head.stdout.read() == ""
