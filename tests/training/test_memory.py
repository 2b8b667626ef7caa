"""What docs/performance.md says of memory holds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spotmpi.fabric.neighbours import barrier_loops
from spotmpi.kernels import cpu, moving

SCRIPT = Path(__file__).with_name("sized.py")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "performance.md"
SMALL, LARGE = 2_000_000, 8_000_000


def stated(what: str) -> int:
    """Bytes for each parameter, as the page has them in its table."""
    found = re.search(rf"^\| {what} \| (\d+) \|", PAGE.read_text(), re.MULTILINE)
    assert found, what
    return int(found[1])


@pytest.mark.parametrize("where", ["own", "in-place"])
@pytest.mark.matrix
def test_memory_for_each_parameter(where: str, run_spotmpi) -> None:
    # Who compiles keeps memory for it: not in the workers that are compared.
    cpu.warm()
    moving.warm("float32")
    barrier_loops.compiled()
    workers = 3
    used = []
    for size in (SMALL, LARGE):
        done = run_spotmpi(["run", "-n", str(workers), SCRIPT, str(size), where])
        assert done.returncode == 0, done.stderr
        # Of what several have mapped, each counts its share.
        own = [int(found) for found in re.findall(r"BYTES (\d+)", done.stdout)]
        assert len(own) == workers, done.stdout
        used.append(sum(own))
    script = 4 * (where == "own")  # its own gradient
    each, host = stated("each worker"), stated("each host")
    expected = workers * (script + each) + host
    assert (used[1] - used[0]) / (LARGE - SMALL) == pytest.approx(expected, abs=3.0)
