"""A process that publishes its model: ``shown.py HOW``; or a reader: ``shown.py read FOUND...``

It says where its published model is, publishes models of one number each, and ends as it is told:
"on" goes on, "killed" and "stopped" signal themselves in the middle of the fourth. A reader reads
others' published models until it has `TO_READ` of each, and holds each against its number.
"""

from __future__ import annotations

import os
import signal
import sys
from functools import partial

import numpy as np

from spotmpi.arrays.backend import in_host_memory
from spotmpi.fabric.neighbours import published_model
from spotmpi.fabric.neighbours.published_model import ModelForm, PublishedModel
from spotmpi.fabric.neighbours.shared_memory import Found

MODEL = [np.zeros(300_007, np.float32), np.zeros(5, np.float64), np.zeros(0, np.float32)]
FORM = ModelForm.of(MODEL)
TO_READ = 100
WAYS = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}
FOURTH = 3
"""The number of the fourth."""


def publish(how: str) -> None:
    """One model after the other."""
    model = PublishedModel.new(FORM, 0)
    print(*model.segment.here, flush=True)
    while True:
        for array in MODEL:
            array[...] = model.published
        if how in WAYS and model.published == FOURTH:
            published_model.in_host_memory = partial(_end_in, WAYS[how])
        model.write(MODEL)


def _end_in(how: signal.Signals, array: np.ndarray) -> np.ndarray:
    if array is MODEL[1]:
        os.kill(os.getpid(), how)
    return in_host_memory(array)


def whole(model: PublishedModel, room: np.ndarray) -> int | None:
    """The number of what it shows; every element says it."""
    number = model.read(room)
    if number is not None:
        for array in FORM.arrays_in(room):
            assert (array == number).all(), f"publication {number} is not whole"
    return number


def read(*shown: PublishedModel) -> None:
    """Of each in turn."""
    room, last, left = FORM.room(), [-1] * len(shown), [TO_READ] * len(shown)
    while any(left):
        for index, model in enumerate(shown):
            if (number := whole(model, room)) is not None:
                assert number >= last[index], "an older one than before"
                left[index] = max(0, left[index] - (number > last[index]))
                last[index] = number
    print("read", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "read":
        read(*(PublishedModel.of(Found(*map(int, one.split())), FORM) for one in sys.argv[2:]))
    else:
        publish(sys.argv[1])
