"""Transcripts that can be read aloud.

A file is a sequence of commands, each followed by ``----`` and by what then happens. Lines that
begin with ``#`` tell the story. After a change that is meant, ``REWRITE_SCENARIOS=1 python -m
pytest tests/test_scenarios.py tests/test_endings.py`` writes down what happens now: read the
difference.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path


def compare(path: Path, perform: Callable[[str], list[str]]) -> None:
    """Hold the transcript against what happens. ``perform`` does what a command says, and returns
    what happened."""
    written = path.read_text()
    happens = _replayed(written, perform)
    if os.environ.get("REWRITE_SCENARIOS") == "1":
        path.write_text(happens)
        written = happens
    assert happens == written


def check_titles(paths: Iterable[Path]) -> None:
    """Check that each transcript has a sentence for a name, and tells its story."""
    for path in paths:
        assert len(path.stem.split("_")) >= 4
        assert path.read_text().startswith("# "), path.stem


def _replayed(text: str, perform: Callable[[str], list[str]]) -> str:
    out, expected = [], False
    for line in text.splitlines():
        if line == "":
            expected = False
        if expected:
            continue
        out.append(line)
        if line and not line.startswith("#"):
            if line == "----":
                raise AssertionError("---- without a command before it")
            out += ["----", *perform(line)]
            expected = True
    return "\n".join(out) + "\n"
