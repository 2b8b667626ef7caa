"""Real hosts for tests (`spotmpi.bench.measuring.network`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spotmpi.bench.measuring.network import Network, missing
from tests.hosts.training import Training


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


@pytest.fixture
def train(network: Callable[[int], Network]) -> Iterator[Callable[..., Training]]:
    """``train(3, of=("h1", "h2"))`` trains on two of three hosts."""
    made: list[Training] = []

    def start(hosts: int, *options: object, **more: Any) -> Training:
        made.append(Training(network(hosts), *options, **more))
        return made[-1]

    yield start
    for training in made:
        training.close()
