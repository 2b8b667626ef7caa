from __future__ import annotations

import numpy as np
import pytest

from spotmpi.errors import UsageError
from spotmpi.protocol.tables import MOST, rows, words, write


def test_all_read_what_each_has_written() -> None:
    total = np.zeros(words(2))
    for place, told in enumerate([[1.5, -2.0], [], [0.0, 3.0]]):
        own = np.ones(words(2))
        write(own, place, 10 + place, told)
        total += own
    assert rows(total) == [(10, [1.5, -2.0]), (12, [0.0, 3.0])]


def test_there_is_room_for_so_many() -> None:
    write(np.zeros(words(1)), MOST - 1, 0, [1.0])
    write(np.zeros(words(1)), MOST, 0, [])  # who tells nothing needs none
    with pytest.raises(UsageError, match=r"^there are 1025 workers, .* at most 1024: start fewer"):
        write(np.zeros(words(1)), MOST, 3, [1.0])
