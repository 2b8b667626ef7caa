"""Slurm clusters for tests (`tests.slurm.cluster`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster, missing


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """``cluster(3)`` makes one of three nodes."""
    if (why := missing()) is not None:
        pytest.skip(why)
    made: list[Cluster] = []

    def make(nodes: int, **more: bool | str | int) -> Cluster:
        folder = tmp_path / f"cluster{len(made)}"
        folder.mkdir()
        made.append(Cluster(folder, nodes, **more))
        return made[-1]

    yield make
    for one in made:
        one.close()
