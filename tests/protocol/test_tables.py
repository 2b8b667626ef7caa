from __future__ import annotations

import numpy as np
import pytest

from spotmpi.errors import UsageError
from spotmpi.protocol.tables import MOST, read, rows_after, write


def test_all_read_what_each_has_written() -> None:
    total = np.zeros(4 * 3)
    for place, told in enumerate([[1.5, -2.0], [], [0.0, 3.0]]):
        own = np.ones(4 * 3)
        write(own, place, 10 + place, told)
        total += own
    assert read(total, 3) == [(10, [1.5, -2.0]), (12, [0.0, 3.0])]


def test_there_is_a_row_for_each_worker_and_for_one_that_comes() -> None:
    found = [rows_after(workers) for workers in range(1, 10)]
    assert found == [2, 4, 4, 8, 8, 8, 8, 16, 16]
    assert rows_after(MOST - 1) == rows_after(MOST) == MOST


def test_there_is_room_for_so_many() -> None:
    write(np.zeros(MOST * 2), MOST - 1, 0, [1.0])
    write(np.zeros(MOST * 2), MOST, 0, [])  # who tells nothing needs none
    with pytest.raises(UsageError, match=r"^there are 1025 workers, .* at most 1024: start fewer"):
        write(np.zeros(MOST * 2), MOST, 3, [1.0])
