"""What many workers take is said before they start; what cannot be is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotmpi.launch.start import crowd
from spotmpi.launch.start.crowd import Memory

GB = 10**9

START = (
    "300 workers on 2 cores, 150 to each: to start them takes 1 min 15 s or more, and 14 GB of "
    "memory without what the script needs; 23 GB are free"
)
JOIN = (
    "52 workers on 2 cores, 26 to each: the new ones join one after the other, which takes 50 s or "
    "more, and need 2.3 GB of memory without what the script needs; 23 GB are free"
)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch):
    """``host(cores, free)`` is where this runs, with so many GB of 24 GB free."""

    def here(cores: int, free: int) -> None:
        monkeypatch.setattr(crowd, "cores", lambda: cores)
        monkeypatch.setattr(crowd, "memory", lambda: Memory(24 * GB, free * GB))

    return here


@pytest.mark.parametrize("workers", [1, 8, 32])
def test_a_usual_number_of_workers_is_not_worth_a_word(host, workers: int) -> None:
    host(2, 23)
    assert crowd.judged(workers) == ""


@pytest.mark.parametrize(
    ("workers", "joining", "cores", "free", "said"),
    [
        (300, 0, 2, 23, START),
        (33, 0, 2, 23, "33 workers on 2 cores, 17 to each: to start them takes 8 s or more, and "),
        (40, 0, 1, 23, "40 workers on 1 core, 40 to each: to start them takes 20 s or more, and "),
        (20, 0, 32, 1, "20 workers on 32 cores: to start them takes 1 s or more, and 0.9 GB of"),
        (52, 50, 2, 23, JOIN),
    ],
)
def test_who_starts_a_crowd_is_told_what_that_takes(
    host, workers: int, joining: int, cores: int, free: int, said: str
) -> None:
    host(cores, free)
    assert crowd.judged(workers, joining).startswith(said)


def test_only_what_cannot_be_at_all_is_refused(host) -> None:
    host(2, 1)
    assert crowd.too_many(600) == ""
    assert crowd.too_many(601) == (
        "601 workers need 28 GB of memory without what the script needs, and there are 24 GB in "
        "all: start fewer"
    )


@pytest.mark.parametrize(
    ("limits", "found"),
    [
        ({}, Memory(10 * 1024, 6 * 1024)),
        ({"memory.max": "max"}, Memory(10 * 1024, 6 * 1024)),
        (
            {"memory.max": "8000", "a/memory.max": "5000", "a/b/memory.max": "max"},
            Memory(5000, 5000),
        ),
        ({"a/b/memory.max": "7000"}, Memory(7000, 6 * 1024)),
        ({"other/memory.max": "1"}, Memory(10 * 1024, 6 * 1024)),
    ],
)
def test_a_container_may_have_less_memory_than_its_host(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, limits: dict[str, str], found: Memory
) -> None:
    (tmp_path / "meminfo").write_text(
        "MemTotal:           9 kB\nMemAvailable:   6 kB\nSwapTotal:   1 kB\nHugePages_Total: 0\n"
    )
    (tmp_path / "cgroup").write_text("1:cpu:/x\n0::/a/b\n")
    for name, text in limits.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(f"{text}\n")
    monkeypatch.setattr(crowd, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(crowd, "_CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(crowd, "_CGROUPS", tmp_path / "groups")
    assert crowd.memory() == found


def test_this_host_has_some() -> None:
    assert 0 < crowd.memory().free < crowd.memory().whole
