"""The trace: what a run did, one JSON object a line, the same for real runs and the simulator.

Every record has ``event`` (its kind) and ``at`` (seconds on ``time.monotonic()``'s clock, which all
processes of one host share; the simulator's own clock there), then the fields of its kind:

==========  =======================================================================================
event       fields
==========  =======================================================================================
start       workers [ids], hosts (optional), params (number of floats), bucket_mb, seed, strategy,
            optimizer, lr (a number, or a schedule in words), pid (optional), version, time (seconds
            since 1970, by the clock on the wall, at the moment of the line)
step        step (from 0), round, generation, workers [ids], contributions [{worker, samples,
            weight}] in the order of summation, loss, rate, digest (hex or null), seconds.
            samples: the indices as a list, or null where the script deals its own; weight: the
            number of samples. committed: when it was, on the writer's clock. hosts [[ids]], where
            sums went from host to host: the workers of each; ways [names], which way the sum of
            each flat array went (none: all "ring"), and with that the order of summation, as
            `protocol.host_ring` has it; narrow, where sums of float32 in rings were narrowed: the
            format. Written once, when the step is stable.
            The steps of one round are committed together, with its rate, and only the last of them
            has a digest. loop and pass, where batches are dealt: as batches has them. taken
            [counts], where workers take different numbers of steps on the way to a round: how many
            each of the workers took; their samples stand in equal parts then. sent, where
            contributions are made before the round ends: after how many of its steps, and shares
            [counts]: the samples that those stand for. The samples of later steps count if their
            worker takes part in the next round of the same loop, and no resume lies between; else
            they are dealt again (`spotmpi.replay.uses`)
recovery    generation, lost [ids], step, detect_ms, revoke_ms, reconcile_ms, accept_ms,
            restart_ms, total_ms (null where the moment of death is unknown), verdict
            ("repair", "retry" or "none"), lost_steps, recomputed_gradients,
            messages_sent {worker: count}, came_ms: after the death it computed for so long
            before it came to the round. As the leader saw it; two of one generation are one
            recovery, whose first writer died
recovered   worker, generation, step, and what of the above this worker saw itself; one for each
            survivor: ``at`` is the moment at which it committed its first step afterwards, and
            digest that of its own parameters then
change      generation, step, joined [ids], hosts (of those), left [ids], pause_ms: who was admitted
            or left before this step; the pause is that of the worker that wrote the line
cause       worker, cause, why: why a worker of an earlier recovery or change is gone, as the
            launcher knows it: "killed" (a process), "crashed" (in MPI), "silent" or "reset" (its
            host: no beat came, or its connection broke), "unreachable" (for others), "stopped"
            (SIGSTOP), "hung" (it did nothing, and all others waited for it), "notice" (its host was
            to be taken away), "asked" (spotmpi shrink). None without a launcher; may be told twice
timing      worker, steps, committed, script_ms, round_ms, cpu_ms, starved_ms, between: a worker's
            own times for several rounds, a list each. steps: the last step of each round. script_ms
            until it came to the round, round_ms from then until it was complete; both begin with
            the commit of the round before. cpu_ms of both together its main thread ran on a core,
            starved_ms it could have run and had none (both where the kernel tells). between {place
            in the list: [names]}: other rounds that came before, such as "once". committed: when
            the last of them was, on the clock of the worker's host
way         generation, step, array, bytes, ms {name: milliseconds}, way: the ways in which sums of
            this array may go between hosts were tried in the first rounds of this generation, and
            what each took; sums go this way after this step, as long as the generation lasts
checkpoint  step, path, seconds, worker, began, copy_ms, wait_ms: it was written in the background
            for so many seconds, from then on; before that its worker copied the state, for which
            others had to wait, and for wait_ms it could not go on before the file was there
resume      step, path; training goes on *with* this step, and what the trace said before of this
            step and later ones is void
strategy    step, generation, strategy, strategy_name (null for one that does not come with
            spotmpi), before (the name of the one before, or its chain), why and figures (null where
            the script asked for it, or a policy on a leader that was lost): from this step on all
            go on with it
survey      step, strategy (its name, or its chain), decides (the one that the policy decided for;
            null: it stayed, or a change was asked for already), figures: what the leader's policy
            was told before this step
gap         step, steps, strategy_name; this many steps from this one on were trained and are in no
            record: all workers who had taken part in them were lost before they could be written.
            What is followed after them has this name
batches     step, loop, n, batch_size, passes: from this step on the script goes through these
            batches, the loop-th that it asked for; steps of it have its number, loop, and that of
            their pass. May be told again, by another worker
end         step, workers [ids], outcome, left_early: the loops of batches that the script has not
            gone through to their end
mended      none; a killed worker had left a line unfinished before this one
==========  =======================================================================================

A checkpoint of step *s* holds the state *before* step *s*: *s* steps are done.

Times are seconds, or milliseconds where the name ends in ``_ms``. Unknown is null. JSON has no
infinities: a number that is not finite is null, too, and the record's ``not_finite`` then says what
it is, by its field: ``{"loss": "nan"}``. (Of the first one, where a field has several.)

Several workers of one host append to one file, and any of them may be killed in the middle of a
write. This is why it holds without a lock (which a stopped worker, or a dead one's forked child,
could keep from the others for good):

- A line is one ``write(2)`` on an ``O_APPEND`` descriptor. The kernel does such writes to a regular
  file one after the other, each at the end that the one before left, so whole lines never mix.
- A SIGKILL can end a write between two pages. What it leaves is the beginning of a line without
  its newline, for ever, and the next worker's line follows on it directly. A record starts with
  ``{"event":"``, which nothing else in a line can be (inside a string the quotes are escaped), so
  a reader finds the whole record behind it and drops the unfinished one.
- Nobody cuts the file while others append: a last line without a newline may also be one that a
  living worker has not finished *yet*. Whoever takes over (`Trace.take_over`) appends a line of its
  own, which the kernel does after the other's write is over. A line that ends in a newline is
  final, so what is unfinished in front of a record can then be overwritten with blanks in its
  place, however many append meanwhile: each line is one JSON object again, for any reader.

All functions are local. Network file systems do not append atomically: a trace belongs on a disk of
the host.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from spotmpi.errors import TraceError, UsageError

__all__ = ["Record", "Tail", "Trace", "check", "read"]

Record = dict[str, Any]

_START = b'{"event":"'
_TAIL = 1 << 16
_HEAD = 200
"""Bytes by which one run's trace is told from another's: its start, with the time of it."""
_LONGEST = 1 << 26
"""Bytes of a line."""


class Trace:
    """Where this worker writes its records. Without a path it does nothing.

    Opening and every call block only as long as a write to the page cache does. A trace that cannot
    be opened is a UsageError; one that cannot be written later (a full disk) warns once and stops,
    since a training is worth more than its trace; `spotmpi.trace.replay` sees what is then missing.
    """

    def __init__(self, path: Path | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._fd = -1 if path is None else _open(path)

    @property
    def active(self) -> bool:
        """Whether records go anywhere."""
        return self._fd >= 0

    def begin(self, *, resume: bool) -> None:
        """The first leader calls it once, before anybody writes: a run that does not resume
        replaces what an earlier one left, a run that does appends to it."""
        if self._fd < 0:
            return
        if resume:
            self.take_over()
        else:
            os.ftruncate(self._fd, 0)  # not a new file: other workers may have this one open

    def write(self, event: str, /, **fields: Any) -> None:
        """Appends one record. Values are what JSON knows, or NumPy numbers and arrays of them;
        TypeError for anything else."""
        if self._fd < 0:
            return
        record = {"event": event, "at": self._clock(), **fields}
        try:
            text = _to_json(record)
        except ValueError:  # a number is not finite, which is rare: only then look at each
            strange: dict[str, str] = {}
            finite = {name: _finite(value, name, strange) for name, value in record.items()}
            text = _to_json({**finite, "not_finite": strange})
        line = text.encode() + b"\n"
        try:
            if os.write(self._fd, line) != len(line):
                # The rest would land behind what other workers have appended meanwhile.
                raise OSError("the file takes no more")
        except OSError as error:
            self.close()
            warnings.warn(
                f"the trace {self._path} ends here for this worker: {error.strerror or error}; "
                "make room for the next run, this one goes on without",
                RuntimeWarning,
                stacklevel=2,
            )

    def take_over(self) -> int | None:
        """The number of the last step in the trace that is not void, None if there is none.

        For the worker that writes the steps from now on, so that each is written once. Reads only
        as much of the end as it must, and mends what dead writers left unfinished there.
        """
        if self._path is None or self._fd < 0:
            return None
        with self._path.open("r+b", buffering=0) as file:
            if (tail := _tail(file.fileno(), 1)[1]) and tail != b"\n":
                self.write("mended")
            size = _TAIL
            while True:
                begin, tail = _tail(file.fileno(), size)
                step = None
                for offset, line in _lines(begin, tail):
                    record, start = _parse(line)
                    if start > 0:
                        os.pwrite(file.fileno(), b" " * start, offset)
                    step = _step_done(record, step)
                if step is not None or begin == 0:
                    return step if step is not None and step >= 0 else None
                size *= 8

    def close(self) -> None:
        """Ends the writing. Nothing is buffered, so nothing is lost without it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Tail:
    """A trace that may still be written: what comes in it, look by look. Local, blocking."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self._head = b""
        """How the file begins: another run's begins otherwise."""
        self._line = 0
        self.began_anew = False
        """The last look found another run in the file, from its first record on."""

    def new(self) -> Iterator[Record]:
        """The records that have been finished since the last look; take all of them.

        What a living worker has not finished yet comes with a later look. A file that is not there,
        and a line that is no record, are a TraceError; the next look begins behind that line.
        """
        self.began_anew = False
        try:
            with self._path.open("rb") as file:
                head = file.read(_HEAD)
                if not head.startswith(self._head) or os.fstat(file.fileno()).st_size < (
                    self._position
                ):
                    self.began_anew, self._position, self._line = True, 0, 0
                self._head = head
                file.seek(self._position)
                for line in iter(partial(file.readline, _LONGEST), b""):
                    if not line.endswith(b"\n"):
                        if len(line) == _LONGEST:
                            raise TraceError(f"{self._path} is no trace: a line of it has no end")
                        return
                    self._position += len(line)
                    self._line += 1
                    record, _ = _parse(line)
                    if record is not None:
                        yield record
                    elif line.strip():
                        raise _no_record(self._path, self._line, line)
        except OSError as error:
            raise _unreadable(self._path, error) from error


def read(path: str | os.PathLike[str]) -> Iterator[Record]:
    """The records of a trace in order. What a killed worker left unfinished is passed over; any
    other line that is not a record is a TraceError with its number."""
    try:
        with Path(path).open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    return  # unfinished, and only the last line can be
                record, _ = _parse(line)
                if record is not None:
                    yield record
                elif line.strip():
                    raise _no_record(path, number, line)
    except OSError as error:
        raise _unreadable(path, error) from error


def check(path: Path) -> None:
    """UsageError if a run may not write its trace there: a new run replaces what it finds, and
    that must be a trace (or nothing) then."""
    try:
        if path.exists() and not path.is_file():
            raise OSError(0, "it is not a regular file")
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            found = file.read(_TAIL).lstrip(b" ")
            if found and not (found.startswith(_START) or _START.startswith(found)):
                raise OSError(0, "it holds something else, which would be lost")
    except OSError as error:
        raise _unwritable(path, error) from error


def _no_record(path: str | os.PathLike[str], number: int, line: bytes) -> TraceError:
    shown = line[:60].decode(errors="replace").rstrip()
    return TraceError(f"{path}, line {number} is not a record: {shown!r}")


def _unreadable(path: str | os.PathLike[str], error: OSError) -> TraceError:
    return TraceError(f"the trace {path} cannot be read: {error.strerror}")


def _open(path: Path) -> int:
    check(path)
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> UsageError:
    return UsageError(
        f"the trace {path} cannot be written: {error.strerror}; name a new file, in a folder that "
        "exists and that this user may write to"
    )


def _to_json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False, default=_plain)


def _plain(value: Any) -> object:
    """What the JSON encoder does not know: NumPy's numbers and arrays, and nothing else."""
    if _of_numpy(value):
        return value.tolist()
    raise TypeError(f"a trace holds numbers, texts, lists and dicts, not {type(value).__name__}")


def _of_numpy(value: Any) -> bool:
    """True for NumPy's numbers and arrays. A launcher, which has none, does not import NumPy."""
    return type(value).__module__ == "numpy"


def _finite(value: Any, field: str, strange: dict[str, str]) -> Any:
    """The same value without the numbers that are not finite, which go to ``strange``."""
    if isinstance(value, dict):
        return {key: _finite(item, field, strange) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item, field, strange) for item in value]
    if _of_numpy(value):
        return _finite(value.tolist(), field, strange)
    if isinstance(value, float) and not math.isfinite(value):
        strange.setdefault(field, str(value))
        return None
    return value


def _parse(line: bytes) -> tuple[Record | None, int]:
    """The record of a line that ends in a newline, and where in the line it starts."""
    for start in (0, line.rfind(_START)):
        try:
            record = json.loads(line[max(start, 0) :])
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict) and isinstance(record.get("event"), str):
            return record, start
    return None, 0


def _step_done(record: Record | None, before: int | None) -> int | None:
    """The last step done after this record, -1 for none; ``before`` if it does not tell."""
    step = None if record is None else record.get("step")
    if record is None or not isinstance(step, int):
        return before
    steps = record.get("steps", 0)
    done = {"step": step, "resume": step - 1, "gap": step + steps - 1}
    return done.get(record["event"], before)


def _tail(fd: int, size: int) -> tuple[int, bytes]:
    """Where the last ``size`` bytes of a file begin, and they themselves."""
    begin = max(0, os.fstat(fd).st_size - size)
    return begin, os.pread(fd, size, begin)


def _lines(begin: int, tail: bytes) -> Iterator[tuple[int, bytes]]:
    """The whole lines in the end of a file, each with its offset in the file."""
    position = tail.find(b"\n") + 1 if begin else 0
    while end := tail.find(b"\n", position) + 1:
        yield begin + position, tail[position:end]
        position = end
