"""A process that adds to what it shares with others: ``adding.py HEADER...``

It says where its header is, and puts a part into the sum of round 0 whenever it is told a number on
its input; of that, and of the sum, all elements are alike. It says what the first element of each
array is then. Told "half", it is killed when one of two arrays is added; told "many", it adds parts
in a row until it is told to stop by the next line, and then once more.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from typing import Any

import numpy as np

from spotmpi.fabric.neighbours import common_sums
from spotmpi.fabric.neighbours.common_sums import CommonSums
from spotmpi.fabric.neighbours.shared_header import SharedHeader
from spotmpi.fabric.neighbours.shared_memory import Found

__all__ = ["arrays"]


def arrays(value: float) -> list[Any]:
    """A part, or a sum."""
    return [np.full(300_007, value, np.float32), np.full(5, value, np.float64)]


def main() -> None:
    """Go on until the input ends."""
    others = [SharedHeader.of(Found(*map(int, one.split()))) for one in sys.argv[1:]]
    header = SharedHeader.new()
    print(*header.found, flush=True)
    sums, total, headers = CommonSums(header), arrays(0), [*others, header]
    replace = common_sums._replace

    def killed(one: Any, within: Any, part: Any) -> None:
        if len(part) == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        replace(one, within, part)

    told = open(0, "rb", buffering=0)  # noqa: SIM115 - what is not read yet is not taken
    for line in iter(told.readline, b""):
        what, value = line.decode().split()
        if what == "half":
            common_sums._replace = killed
        if what == "many":
            number = 0
            while not select.select([told], [], [], 0)[0]:
                number += 1
                sums.add(arrays(number % 7), total, 0, headers)
            continue
        sums.add(arrays(float(value)), total, 0, headers)
        print(*(float(flat[0]) for flat in total), flush=True)


if __name__ == "__main__":
    main()
