"""What a bench finds, as it comes: rows for people, cells for a file, and what failed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

from spotmpi.bench.measuring import machine
from spotmpi.bench.measuring.events import JobFailed
from spotmpi.errors import UsageError

__all__ = ["Report"]

T = TypeVar("T")

_BESIDE = 1_500_000_000
"""Bytes that remain free: for the programs of some workers, and for others."""


class Report:
    """Of one run. Its file has all that was found by then."""

    def __init__(self, bench: str, file: Path | None, gpu: bool = False, **about: Any) -> None:
        """``gpu``: it measures one. ``about``: what else stands at the head of the file. UsageError
        if there is no folder for the file, or no GPU. Blocking, 0.1 s."""
        if file and not file.resolve().parent.is_dir():
            raise UsageError(f"{file}: there is no such folder; make it first")
        self._file = file
        self._head = {"bench": bench, **machine.describe(gpu), **about}
        self.cells: list[Mapping[str, Any]] = []
        self.failures: list[str] = []

    def has_room(self, needed: int, what: str) -> bool:
        """Whether this machine has so many bytes of memory for a job of workers; says so if not."""
        free = machine.free_memory()
        if needed + _BESIDE > free:
            print(f"left out: {what}: it takes {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free")
            return False
        return True

    def with_room(
        self, workers: Iterable[int], whats: Iterable[T], needed: Callable[[int, T], int]
    ) -> Iterator[tuple[int, T, str]]:
        """Yield those of these jobs for which this machine has room: workers, what they do, and
        both as text. ``needed``: the bytes of memory that a job takes."""
        for what, number in product(whats, workers):
            job = f"{number} workers, {what}"
            if self.has_room(needed(number, what), job):
                yield number, what, job

    @contextmanager
    def measuring(self, what: str) -> Iterator[None]:
        """A job of the bench: if it fails, that is said, and the next one may go on."""
        try:
            yield
        except JobFailed as error:
            self.failures.append(f"{what}: {error}")
            print(f"FAILED {self.failures[-1]}", flush=True)

    def add(self, cell: Mapping[str, Any], lines: Iterable[object]) -> None:
        """One figure: for the file, which has it at once, and for people."""
        self.cells.append(cell)
        self._write()  # the bench may be ended before it is through
        print(*lines, sep="\n", flush=True)

    def close(self) -> int:
        """Write what was asked for. What the command ends with: 1 if anything failed."""
        self._write()
        return 1 if self.failures else 0

    def _write(self) -> None:
        if self._file:
            results = {**self._head, "failures": self.failures, "cells": self.cells}
            self._file.write_text(json.dumps(results, indent=1) + "\n")
