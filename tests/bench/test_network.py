"""The hosts of benches, and what runs on them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import spotmpi
from spotmpi.bench.network import Network, missing


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
