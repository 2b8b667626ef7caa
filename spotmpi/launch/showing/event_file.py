"""Figures of a job as TensorBoard reads them: an event file, appended to while the job runs.

A file is a list of records (TFRecord), and each holds an `Event` of TensorFlow's protocol buffers:
five fields of it are written here by hand. The packages that write them import NumPy or start
threads, and the launcher forks, so it must have one thread only.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from spotmpi.launch.control_messages import Report
from spotmpi.launch.showing.figures import Figures

__all__ = ["EventFile", "event", "record"]

_VERSION = b"brain.Event:2"
"""What the first record of each file says."""

_POLYNOMIAL = 0x82F63B78
"""Of CRC-32C (Castagnoli), bits reversed."""


class EventFile:
    """One file in a folder, which is made if it is not there.

    It is opened when there is something to write. Training is worth more: what cannot be written is
    lost, and ``say`` tells the user so once.
    """

    def __init__(self, folder: Path, figures: Figures, say: Callable[[str], None]) -> None:
        self._path = folder / f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}"
        self._figures = figures
        self._say = say
        self._said = False
        self._descriptor: int | None = None
        self._step: int | None = None

    def look(self, status: Report) -> None:
        """Write how the job stands, where that is new. Never raises."""
        if status.step is None or status.step == self._step:
            return
        self._step = status.step
        self._append(event(time.time(), status.step, dict(_scalars(status, self._figures))))

    def close(self) -> None:
        """Let go of the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _append(self, data: bytes) -> None:
        try:
            if self._descriptor is None:
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._descriptor = os.open(self._path, flags | os.O_NONBLOCK, 0o666)
                if os.fstat(self._descriptor).st_size == 0:
                    data = record(_double(1, time.time()) + _bytes(3, _VERSION)) + data
            size = os.fstat(self._descriptor).st_size
            try:
                while data:
                    data = data[os.write(self._descriptor, data) :]
            except OSError:
                with suppress(OSError):
                    os.ftruncate(self._descriptor, size)  # half a record ends the file for readers
                raise
        except OSError as error:
            if not self._said:
                self._said = True
                self._say(
                    f"{self._path} cannot be written ({error.strerror}); the training goes on, and "
                    "what belongs into --tensorboard is missing there until there is room for it"
                )


def event(at: float, step: int, scalars: Mapping[str, float]) -> bytes:
    """The record of these values, by their tags."""
    summary = b"".join(
        _bytes(1, _bytes(1, tag.encode()) + _float(2, value)) for tag, value in scalars.items()
    )
    return record(_double(1, at) + _number(2, step) + _bytes(5, summary))


def record(data: bytes) -> bytes:
    """One record with this in it."""
    length = struct.pack("<Q", len(data))
    return length + _check(length) + data + _check(data)


def _scalars(status: Report, figures: Figures) -> Iterable[tuple[str, float]]:
    if status.loss is not None:
        yield "loss", status.loss
    if status.steps_per_second is not None:
        yield "pace/steps per second", status.steps_per_second
    if status.samples_per_second is not None:
        yield "pace/samples per second", status.samples_per_second
    yield "workers", sum(one.state == "training" for one in status.workers)
    spent = figures.spent
    if whole := sum(spent):
        for name, seconds in spent._asdict().items():
            yield f"time/{name}", seconds / whole
    yield "recoveries", figures.recoveries.total()


# Protocol buffers: a key, which has the field's number and its kind, and the value.


def _double(field: int, value: float) -> bytes:
    return bytes([field << 3 | 1]) + struct.pack("<d", value)


def _float(field: int, value: float) -> bytes:
    return bytes([field << 3 | 5]) + struct.pack("<f", _bounded(value))


def _bounded(value: float) -> float:
    """The nearest that a float of 32 bits can be."""
    most = 3.4028234663852886e38
    return min(max(value, -most), most)


def _number(field: int, value: int) -> bytes:
    return bytes([field << 3]) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return bytes([field << 3 | 2]) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    said = bytearray()
    while value > 0x7F:
        said.append(value & 0x7F | 0x80)
        value >>= 7
    said.append(value)
    return bytes(said)


def _table() -> Iterable[int]:
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
        yield byte


_TABLE = tuple(_table())


def _check(data: bytes) -> bytes:
    """CRC-32C, turned and shifted as TFRecord has it."""
    check = 0xFFFFFFFF
    for byte in data:
        check = check >> 8 ^ _TABLE[(check ^ byte) & 0xFF]
    check ^= 0xFFFFFFFF
    turned = (check >> 15 | check << 17) + 0xA282EAD8
    return struct.pack("<I", turned & 0xFFFFFFFF)
