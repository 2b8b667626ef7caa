"""Real hosts for tests (`spotmpi.bench.network`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spotmpi.bench.network import Network, missing


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Callable[[int], Network]]:
    """``network(3)`` makes a head and three hosts."""
    if (why := missing()) is not None:
        pytest.skip(why)
    made: list[Network] = []

    def make(hosts: int) -> Network:
        folder = tmp_path / f"network{len(made)}"
        folder.mkdir()
        made.append(Network(folder, hosts))
        return made[-1]

    yield make
    for one in made:
        one.close()
